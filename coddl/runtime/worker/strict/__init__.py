"""The model behind `strict=True`: virtual nodes, one per pass, and the same bits at any size.

samples    which samples and which random numbers a virtual node has
stepping   puts the session in the place of `optimizer.step()` and its like
exchange   collects the gradients of passes; canonical sums them in one fixed order
buffers    stages what forward does to buffers, so that a pass can be done again
"""
