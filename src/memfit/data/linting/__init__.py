"""The pipeline linter: reads the graph of any tf.data dataset and says what in it costs memory, time or data."""
