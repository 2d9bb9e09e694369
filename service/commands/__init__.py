"""One module per command of `lanewise`, imported by `service.cli` when it is used."""
