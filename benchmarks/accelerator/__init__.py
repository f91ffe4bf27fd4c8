"""Parts of `gpu.py`: each measures one thing on a device."""
