import queue
import subprocess
import sys
import unittest

from headrace.vllm.replies import WholeReplies


class Queue:
    """A reply queue as vLLM's: dequeue with a timeout."""

    def __init__(self):
        self._queue = queue.Queue()
        self.put = self._queue.put
        self.closed = False

    def dequeue(self, timeout=None):
        try:
            return self._queue.get(timeout=timeout if timeout is not None else 10)
        except queue.Empty:
            raise TimeoutError from None

    def shutdown(self):
        self.closed = True


def take(replies):
    """vLLM's own loop: the first failure ends it."""
    taken = []
    for reply in replies:
        status, result = reply.dequeue(timeout=5)
        if status != "ok":
            raise RuntimeError(result)
        taken.append(result)
    return taken


class RepliesTest(unittest.TestCase):
    def setUp(self):
        self.queues = [Queue() for _ in range(3)]

    def answer(self, *answers):
        for q, answer in zip(self.queues, answers):
            q.put(answer)

    def test_calls_stay_in_step_after_each_failure(self):
        replies = WholeReplies(self.queues)
        for failing in range(3):
            self.answer(*[("failed" if i == failing else "ok", f"worker {i}") for i in range(3)])
            with self.assertRaisesRegex(RuntimeError, f"worker {failing}"):
                take(replies)
            self.answer(("ok", 1), ("ok", 2), ("ok", 3))
            self.assertEqual(take(replies), [1, 2, 3])

    def test_the_loop_alone_gets_out_of_step(self):
        self.answer(("failed", "x"), ("ok", "old"), ("ok", "old"))
        with self.assertRaises(RuntimeError):
            take(self.queues)
        self.answer(("ok", 1), ("ok", 2), ("ok", 3))
        self.assertEqual(take(self.queues), [1, "old", "old"])

    def test_one_worker_s_answer_and_the_queue_s_other_methods(self):
        replies = WholeReplies(self.queues)
        self.queues[1].put(("ok", "only"))
        self.assertEqual(replies[1].dequeue(timeout=5), ("ok", "only"))
        for reply in replies:
            reply.shutdown()
        self.assertTrue(all(q.closed for q in self.queues))

    def test_a_worker_that_does_not_answer(self):
        self.queues[0].put(("ok", 1))
        with self.assertRaises(TimeoutError):
            next(iter(WholeReplies(self.queues))).dequeue(timeout=0.01)

    def test_executors_are_mended_before_and_after_their_import(self):
        check = "assert executor.MultiprocExecutor.collective_rpc.__module__ and hasattr("
        check += "executor.MultiprocExecutor.collective_rpc, '__wrapped__')"
        mend = "from headrace.vllm.replies import keep_in_step; keep_in_step(); keep_in_step()"
        load = "import vllm.v1.executor.multiproc_executor as executor"
        code = f"{mend}; import sys; assert 'vllm' not in sys.modules; {load}; {check}; {mend}; {check}"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        subprocess.run([sys.executable, "-c", f"{load}; {mend}; {check}"], check=True, capture_output=True)


if __name__ == "__main__":
    unittest.main()
