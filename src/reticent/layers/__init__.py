"""The forward pass of one base and many adapters, block by block, shared by the engine and by training."""
