"""Language models over HTTP; graphs and weights of embedders and rerankers, and the runtimes that compute them."""
