"""Below the routes: bodies, errors, streams, files, deadlines."""
