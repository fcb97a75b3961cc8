"""A model server of our own, by the API package of TensorFlow Serving: it loads SavedModels with TensorFlow.

It stands in for `tensorflow_model_server`, which is not to be had here, and keeps its rules. A directory whose name is
a number is a version. A label is refused on a version that is not loaded. A new configuration replaces the old one.

    python model_server.py --port_file=FILE                                         on a port of its own choice
    python model_server.py --model_name=NAME --model_base_path=DIRECTORY --port=PORT
"""

import argparse
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import tensorflow as tf
from tensorflow_serving.apis import get_model_status_pb2 as status_api
from tensorflow_serving.apis import model_management_pb2 as management_api
from tensorflow_serving.apis import model_service_pb2_grpc as model_service
from tensorflow_serving.apis import predict_pb2 as predict_api
from tensorflow_serving.apis import prediction_service_pb2_grpc as prediction_service
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig

POLL_S = 0.2
State = status_api.ModelVersionStatus


class Server(model_service.ModelServiceServicer, prediction_service.PredictionServiceServicer):
    def __init__(self, *configs):
        self.lock = threading.RLock()
        self.configs = {each.name: each for each in configs}
        self.models = {}
        self.failed = {}

    def poll(self):
        with self.lock:
            for name, config in self.configs.items():
                loaded = self.models.setdefault(name, {})
                there = self.versions(config.base_path)
                for version in [each for each in loaded if each not in there]:
                    del loaded[version]
                for version in [each for each in there if each not in loaded]:
                    try:
                        loaded[version] = tf.saved_model.load(os.path.join(config.base_path, str(version)))
                        self.failed.pop((name, version), None)
                    except Exception as error:
                        self.failed[name, version] = str(error)

    def versions(self, path):
        names = os.listdir(path) if os.path.isdir(path) else []
        return sorted(int(name) for name in names if name.isdigit())

    def poll_for_ever(self):
        while True:
            self.poll()
            time.sleep(POLL_S)

    def GetModelStatus(self, request, context):
        name = request.model_spec.name
        with self.lock:
            if name not in self.configs:
                context.abort(grpc.StatusCode.NOT_FOUND, f"Could not find any versions of model {name}")
            answer = status_api.GetModelStatusResponse()
            for version in self.models.get(name, {}):
                answer.model_version_status.add(version=version, state=State.AVAILABLE)
            for (model, version), text in self.failed.items():
                if model == name:
                    one = answer.model_version_status.add(version=version, state=State.END)
                    one.status.error_code, one.status.error_message = 9, text
            return answer

    def HandleReloadConfigRequest(self, request, context):
        answer = management_api.ReloadConfigResponse()
        with self.lock:
            for config in request.config.model_config_list.config:
                for label, version in config.version_labels.items():
                    if version not in self.models.get(config.name, {}):
                        answer.status.error_code = 9
                        answer.status.error_message = (
                            f"Request to assign label {label} to version {version} of model {config.name}, "
                            "which is not currently available for inference"
                        )
                        return answer
            self.configs = {each.name: each for each in request.config.model_config_list.config}
            self.models = {name: self.models[name] for name in self.configs if name in self.models}
        return answer

    def Predict(self, request, context):
        spec = request.model_spec
        with self.lock:
            loaded = self.models.get(spec.name, {})
            version = max(loaded, default=0)
            if spec.HasField("version"):
                version = spec.version.value
            elif spec.version_label:
                version = self.configs[spec.name].version_labels.get(spec.version_label, 0)
            if version not in loaded:
                context.abort(grpc.StatusCode.NOT_FOUND, f"no such version of model {spec.name}")
            model = loaded[version]
        call = model.signatures[spec.signature_name or "serving_default"]
        inputs = {name: tf.constant(tf.make_ndarray(each)) for name, each in request.inputs.items()}
        answer = predict_api.PredictResponse()
        answer.model_spec.name = spec.name
        answer.model_spec.version.value = version
        for name, each in call(**inputs).items():
            answer.outputs[name].CopyFrom(tf.make_tensor_proto(each.numpy()))
        return answer


def main():
    parser = argparse.ArgumentParser()
    for name, otherwise in (("port_file", ""), ("port", "0"), ("model_name", ""), ("model_base_path", "")):
        parser.add_argument(f"--{name}", default=otherwise)
    given = parser.parse_args()
    own = ModelConfig(name=given.model_name, base_path=given.model_base_path)
    server, answers = grpc.server(ThreadPoolExecutor(4)), Server(*([own] if own.name else []))
    model_service.add_ModelServiceServicer_to_server(answers, server)
    prediction_service.add_PredictionServiceServicer_to_server(answers, server)
    port = server.add_insecure_port(f"127.0.0.1:{given.port}")
    server.start()
    if given.port_file:
        with open(given.port_file + ".new", "w") as file:
            file.write(str(port))
        os.rename(given.port_file + ".new", given.port_file)
    answers.poll_for_ever()


if __name__ == "__main__":
    main()
