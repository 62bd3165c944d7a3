"""What host projects do at import is done in no one's home."""

import os
import tempfile

os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", tempfile.mkdtemp(prefix="ohsandbox-mini-"))
