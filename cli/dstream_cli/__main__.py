"""``python -m dstream_cli``."""

from dstream_cli.main import main

main()
