"""New weights on a cluster: streamed by a trainer's Job through the gateway into every pod, and served by all."""

from . import trainer
from .images import Images
from .kube import apply, kubectl
from .process import say
from .serving import GROUP, HOME, NAME, Serving
from .trainer import Trainer


def test_what_a_trainer_publishes_is_served_by_every_replica(serving: Serving, images: Images) -> None:
    before = serving.tokens()
    for turn, as_before in enumerate((False, True)):
        # A Job for each turn: one that went on would borrow again before anybody had looked.
        name = f"publisher-{turn}"
        job = trainer.job(name, HOME, images.ebbtide.name, GROUP, ttl=60, first=turn)
        apply(trainer.publishing(job, images.engine.name))
        publisher = Trainer(name, HOME)
        publisher.wait("lend", turn)
        back = publisher.give_back(turn)
        assert all(each["result"]["canary"]["ok"] for each in back["result"]["members"])
        serving.wait("Serving", 2)
        assert [each["weightVersion"] for each in serving.status()["members"]] == [turn + 1] * 2
        answers = [serving.tokens(host=address) for address in serving.addresses()]
        assert len(answers) == 2
        assert answers[0] == answers[1]
        assert (answers[0] == before) is as_before
        say(f"version {turn + 1}: published and served by both in {back['ms']} ms")
    assert kubectl("get", "isv", NAME, "-n", HOME, "-o", "jsonpath={.status.weightVersion}") == "2"
