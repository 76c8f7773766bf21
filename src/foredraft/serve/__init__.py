"""The HTTP server: the OpenAI API in front of one engine thread. Needs the extra `serve`.

`app.py` puts it together; `worker.py` is the thread that owns the engine; `run.py` listens and shuts down.
"""
