"""Other libraries' names and signatures on top of ours: change an import and keep the code."""
