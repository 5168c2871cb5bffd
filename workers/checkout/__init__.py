"""The shared checkout as a worker's tools see it: files, search, bash, and the guard that ends what they start."""
