"""A server with OpenAI's endpoints: `t2r-run serve`. Starlette and uvicorn are imported when it starts."""
