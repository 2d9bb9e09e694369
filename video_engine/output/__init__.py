"""The files of a finished clip, one module a kind. They write where they are told, nothing else."""
