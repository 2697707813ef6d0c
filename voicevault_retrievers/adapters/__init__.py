"""Code shared by the LangChain and LlamaIndex classes; it imports neither framework."""
