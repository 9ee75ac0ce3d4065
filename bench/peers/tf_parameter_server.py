#!/usr/bin/env python3
"""What TensorFlow's parameter server strategy takes to go on: one server, three workers and a coordinator, each a process.

    tf_parameter_server.py --folder DIR

The model is that of the built-in job (jobs/digits_ps.toml), on made-up samples; one thread an operation. The coordinator writes a line
for each step into DIR/steps and a checkpoint into DIR/checkpoints every second, and begins from the last one. A process that ends is
started again at once, as a scheduler would. It never ends.
"""
import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

BATCH = 32
WORKERS = 3
SAVES_EVERY_S = 1
RATE, BETA1, BETA2, EPSILON = 0.0015, 0.9, 0.999, 1e-7
SHAPES = [(3, 3, 1, 32), (32,), (3, 3, 32, 32), (32,), (3, 3, 32, 64), (64,), (256, 10), (10,)]


class Model:
    """Weights and Adam's state, which lie on the server."""

    def __init__(self, tf):
        def made(shape, draw):
            return tf.Variable(lambda: draw(shape), shape=shape, dtype=tf.float32)

        self.tf = tf
        self.weights = [made(shape, lambda shape: tf.random.normal(shape, stddev=0.1)) for shape in SHAPES]
        self.moments = [[made(shape, tf.zeros) for shape in SHAPES] for _ in range(2)]
        self.powers = [tf.Variable(BETA1), tf.Variable(BETA2)]
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    def loss(self, images, classes):
        tf, (c1, b1, c2, b2, c3, b3, w, b) = self.tf, self.weights

        def convolved(x, kernel, bias):
            return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))

        x = tf.nn.max_pool2d(convolved(convolved(images, c1, b1), c2, b2), 2, 2, "VALID")
        x = tf.nn.dropout(x, 0.2, noise_shape=[BATCH, 1, 1, 32])
        x = tf.reshape(tf.nn.max_pool2d(convolved(x, c3, b3), 2, 2, "VALID"), [BATCH, -1])
        outputs = tf.matmul(tf.nn.dropout(x, 0.4), w) + b
        smoothed = tf.one_hot(classes, 10) * 0.9 + 0.01
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(smoothed, outputs))

    def step(self, images, classes):
        tf = self.tf
        with tf.GradientTape() as tape:
            loss = self.loss(images, classes)
        gradients = tape.gradient(loss, self.weights)
        for weight, first, second, gradient in zip(self.weights, *self.moments, gradients):
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle, m=first.handle, v=second.handle, beta1_power=self.powers[0], beta2_power=self.powers[1],
                lr=RATE, beta1=BETA1, beta2=BETA2, epsilon=EPSILON, grad=gradient)
        for power, beta in zip(self.powers, (BETA1, BETA2)):
            power.assign(power * beta)
        return loss


def coordinate(folder):
    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model(tf)
    checkpoint = tf.train.Checkpoint(weights=model.weights, moments=model.moments, powers=model.powers, steps=model.steps)
    manager = tf.train.CheckpointManager(checkpoint, str(folder / "checkpoints"), max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint)
    samples = lambda: tf.data.Dataset.from_tensors(
        (tf.random.normal([BATCH, 8, 8, 1]), tf.random.uniform([BATCH], maxval=10, dtype=tf.int32))).cache().repeat()
    batches = iter(coordinator.create_per_worker_dataset(samples))
    step = tf.function(lambda batches: strategy.run(model.step, args=next(batches)))
    done, last_saved = int(model.steps.numpy()), time.monotonic()
    with open(folder / "steps", "a", buffering=1) as steps:
        while True:
            for _ in range(WORKERS):
                coordinator.schedule(step, args=(batches,))
            coordinator.join()  # an error where the server is lost, which ends this process
            done += WORKERS
            print(done, file=steps)
            if time.monotonic() - last_saved > SAVES_EVERY_S:
                model.steps.assign(done)
                manager.save()
                last_saved = time.monotonic()


def serve(job):
    import tensorflow as tf
    threads = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=WORKERS + 1)
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tf.distribute.Server(cluster.cluster_spec(), job_name=job, task_index=cluster.task_id, config=threads).join()


def free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def launch(folder):
    server, coordinator, *workers = free_addresses(2 + WORKERS)
    cluster = {"ps": [server], "worker": workers, "chief": [coordinator]}

    def start(job, index):
        told = {"cluster": cluster, "task": {"type": job, "index": index}}
        # A call to a task that is gone fails at once, as TensorFlow's guide advises.
        env = os.environ | {"TF_CONFIG": json.dumps(told), "GRPC_FAIL_FAST": "use_caller", "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.Popen([sys.executable, __file__, "--folder", folder, "--task", job], env=env)

    tasks = [(job, index) for job in cluster for index in range(len(cluster[job]))]
    running = {process.pid: (task, process) for task in tasks for process in [start(*task)]}
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT).si_pid
        task, process = running.pop(ended)
        process.wait()
        again = start(*task)
        running[again.pid] = task, again


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--task", choices=["chief", "ps", "worker"], help="be one of the processes")
    args = parser.parse_args()
    if not args.task:
        launch(args.folder)
    elif args.task == "chief":
        coordinate(args.folder)
    else:
        serve(args.task)


if __name__ == "__main__":
    main()
