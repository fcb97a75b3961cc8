"""A client of a model server, by the API package: `python ask.py PORT MODEL VERSION|LABEL|-`; it asks for f(3)."""

import sys

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

port, model, which = sys.argv[1:]
request = predict_pb2.PredictRequest()
request.model_spec.name = model
if which.isdigit():
    request.model_spec.version.value = int(which)
elif which != "-":
    request.model_spec.version_label = which
request.inputs["x"].CopyFrom(tf.make_tensor_proto([3.0]))
stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
answer = stub.Predict(request, timeout=60)
print("version", answer.model_spec.version.value, "says", float(tf.make_ndarray(answer.outputs["y"])[0]))
