"""Where it runs. Thin: each shell performs what its pure core decides."""
