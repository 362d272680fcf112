"""Public training scripts that nothing here was written for. The list only grows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Foreign:
    """One script of a public repository, and how it is started.

    Attributes:
        name: unique, what the table shows.
        repository: of GitHub, "owner/name"; its checkout is looked for under the second part.
        script: with its arguments, from `folder` of the checkout.
        kill_at: the step at which it is killed with SIGKILL.
        path: of the checkout, put on PYTHONPATH, for a script that imports its own package.
        steps: a script without an end of its own leaves after so many steps; 0 for its own end.
        needs: packages beyond ours.
    """

    name: str
    repository: str
    script: str
    kill_at: int
    folder: str = "."
    path: str = ""
    steps: int = 0
    needs: str = ""

    @property
    def checkout(self) -> str:
        return self.repository.split("/")[1]


SCRIPTS = (
    Foreign("makemore transformer", "karpathy/makemore", "makemore.py --max-steps 300", 170),
    Foreign("makemore MLP", "karpathy/makemore", "makemore.py --type mlp --max-steps 1500", 700),
    Foreign("makemore RNN", "karpathy/makemore", "makemore.py --type rnn --max-steps 300", 140),
    Foreign(
        "makemore bigram", "karpathy/makemore", "makemore.py --type bigram --max-steps 900", 333
    ),
    Foreign(
        "minGPT adder",
        "karpathy/minGPT",
        "projects/adder/adder.py --trainer.max_iters=700",
        420,
        path=".",
    ),
    Foreign(
        "tiny-diffusion",
        "tanelp/tiny-diffusion",
        "ddpm.py --dataset dino --num_epochs 6",
        600,
        needs="pandas scikit-learn",
    ),
    Foreign(
        "torchdiffeq ode_demo",
        "rtqichen/torchdiffeq",
        "examples/ode_demo.py --niters 80 --data_size 200",
        50,
        needs="torchdiffeq",
    ),
    Foreign(
        "torchdiffeq latent_ode",
        "rtqichen/torchdiffeq",
        "examples/latent_ode.py --niters 60",
        35,
        needs="torchdiffeq",
    ),
    Foreign(
        "torchdiffeq cnf",
        "rtqichen/torchdiffeq",
        "examples/cnf.py --niters 25",
        15,
        needs="torchdiffeq",
    ),
    Foreign(
        "functorch MAML", "pytorch/functorch", "examples/maml_regression/evjang.py", 300, steps=500
    ),
    Foreign(
        "functorch MAML, transforms",
        "pytorch/functorch",
        "examples/maml_regression/evjang_transforms.py",
        300,
        steps=500,
    ),
    Foreign(
        "functorch MAML, module",
        "pytorch/functorch",
        "examples/maml_regression/evjang_transforms_module.py",
        300,
        steps=500,
    ),
    Foreign(
        "functorch ensemble by vmap",
        "pytorch/functorch",
        "examples/ensembling/parallel_train.py",
        50,
    ),
    Foreign("examples regression", "pytorch/examples", "main.py", 40, folder="regression"),
    Foreign(
        "examples actor-critic",
        "pytorch/examples",
        "actor_critic.py",
        30,
        folder="reinforcement_learning",
        steps=60,
        needs="gymnasium",
    ),
    Foreign(
        "examples REINFORCE",
        "pytorch/examples",
        "reinforce.py",
        30,
        folder="reinforcement_learning",
        steps=60,
        needs="gymnasium",
    ),
    Foreign(
        "cleanrl DQN",
        "vwxyzjn/cleanrl",
        "cleanrl/dqn.py --total-timesteps 14000",
        200,
        path=".",
        needs="gymnasium stable-baselines3 tyro",
    ),
    Foreign(
        "cleanrl C51",
        "vwxyzjn/cleanrl",
        "cleanrl/c51.py --total-timesteps 12500",
        150,
        path=".",
        needs="gymnasium stable-baselines3 tyro",
    ),
    Foreign(
        "cleanrl PPO",
        "vwxyzjn/cleanrl",
        "cleanrl/ppo.py --total-timesteps 6000",
        100,
        path=".",
        needs="gymnasium tyro",
    ),
    Foreign(
        "cleanrl PQN",
        "vwxyzjn/cleanrl",
        "cleanrl/pqn.py --total-timesteps 8000",
        100,
        path=".",
        needs="gymnasium tyro",
    ),
    Foreign(
        "tutorial linear regression",
        "yunjey/pytorch-tutorial",
        "tutorials/01-basics/linear_regression/main.py",
        40,
    ),
    Foreign("grokking", "teddykoker/grokking", "train.py --p 13 --budget 3000", 120, steps=200),
    Foreign(
        "x-transformers copy",
        "lucidrains/x-transformers",
        "train_copy.py",
        90,
        steps=150,
        path=".",
        needs="einops",
    ),
    Foreign(
        "pyro mini SVI",
        "pyro-ppl/pyro",
        "examples/minipyro.py -n 300",
        150,
        path=".",
        needs="pyro-ppl",
    ),
    Foreign(
        "pyro SVI with torch's optimizer",
        "pyro-ppl/pyro",
        "examples/svi_torch.py --num-epochs 2",
        30,
        path=".",
        needs="pyro-ppl",
    ),
    Foreign(
        "pyro LDA",
        "pyro-ppl/pyro",
        "examples/lda.py --num-steps 60",
        30,
        path=".",
        needs="pyro-ppl",
    ),
    Foreign(
        "pyro discrete mixture",
        "pyro-ppl/pyro",
        "examples/toy_mixture_model_discrete_enumeration.py -n 300",
        150,
        path=".",
        needs="pyro-ppl",
    ),
    Foreign(
        "ignite REINFORCE",
        "pytorch/ignite",
        "examples/reinforcement_learning/reinforce.py --max-episodes 20",
        10,
        needs="pytorch-ignite gymnasium",
    ),
    Foreign(
        "pyro mixture, found names",
        "pyro-ppl/pyro",
        "examples/contrib/autoname/mixture.py -n 300",
        150,
        path=".",
        needs="pyro-ppl",
    ),
    Foreign(
        "pyro causal VAE",
        "pyro-ppl/pyro",
        "examples/contrib/cevae/synthetic.py --num-data 800 --num-epochs 12",
        60,
        path=".",
        needs="pyro-ppl",
    ),
    Foreign(
        "pyro sequence alignment",
        "pyro-ppl/pyro",
        "examples/contrib/mue/FactorMuE.py --test --small -e 12 --no-plots --no-save",
        10,
        path=".",
        needs="pyro-ppl",
    ),
    Foreign(
        "skorch classifier in a pipeline",
        "skorch-dev/skorch",
        "train.py net --n_samples 2000 --max_epochs 40",
        150,
        folder="examples/cli",
        needs="skorch scikit-learn fire numpydoc",
    ),
    Foreign(
        "e3nn tetris, equivariant",
        "e3nn/e3nn",
        "examples/tetris.py",
        90,
        steps=150,
        needs="e3nn torch_geometric",
    ),
)
