"""The HTTP server: the OpenAI API in front of one engine thread. Needs the extra `serve`.

`app.py` puts it together; `engine_thread.py` is the thread that owns the engine; `listen.py` listens and shuts down.
"""
