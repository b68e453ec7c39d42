"""A verifiers taskset: say a word. The reward is the share of letters that are in it."""
import verifiers.v1 as vf

__all__ = ["Words"]


class Data(vf.TaskData):
    answer: str


class Word(vf.Task[Data]):
    @vf.reward
    async def letters(self, trace: vf.Trace) -> float:
        said = trace.last_reply
        return sum(c in self.data.answer for c in said) / max(1, len(said))


class Words(vf.Taskset[Word]):
    def load(self):
        for word in ("sea", "tea", "easy", "ear"):
            yield Word(Data(prompt="say " + word, answer=word), self.config.task)
