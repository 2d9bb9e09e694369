"""HTTP: the OpenAI API, the jobs API and the web page. Never loads a model."""
