"""How it is put together: settings, Serve applications, the command line."""
