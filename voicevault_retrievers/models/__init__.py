"""Language models over HTTP, the graphs and weights of embedders and rerankers, and the runtimes for graphs."""
