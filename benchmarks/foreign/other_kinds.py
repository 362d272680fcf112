"""Public scripts that train otherwise than by batches and one loss."""

from __future__ import annotations

from benchmarks.foreign.foreign_script import Foreign

OTHER_KINDS = (
    Foreign(
        "PonderNet parity",
        "jankrepl/mildlyoverfitted",
        "train.py logs --batch-size 16 --n-iter 120 --eval-frequency 40 --n-elems 8 --max-steps 5",
        70,
        folder="github_adventures/pondernet",
        needs="matplotlib",
    ),
    Foreign(
        "NOTEARS, L-BFGS-B of SciPy",
        "xunzheng/notears",
        "notears/nonlinear.py",
        10,
        path=".",
        needs="scipy igraph",
    ),
    Foreign(
        "Hamiltonian net",
        "greydanus/hamiltonian-nn",
        "train.py --total_steps 150 --verbose --print_every 30",
        90,
        folder="experiment-spring",
        needs="autograd scipy",
    ),
    Foreign(
        "word2vec, own sampler",
        "graykode/nlp-tutorial",
        "Word2Vec-Skipgram(Softmax).py",
        700,
        folder="1-2.Word2Vec",
        steps=1200,
        needs="matplotlib",
    ),
    Foreign(
        "LOLA, meta-optimizers",
        "metaopt/torchopt",
        "lola_dice.py --n_update 6 --len_rollout 15 --batch_size 8",
        9,
        folder="examples/LOLA",
        needs="torchopt gym",
    ),
    Foreign(
        "TRPO, natural gradient",
        "Blackcipher101/rl_speedrun",
        "trpo.py",
        17,
        folder="rl_fundamentals/20_trpo",
        steps=30,
        needs="gymnasium matplotlib",
    ),
    Foreign(
        "evolution of a GRU, curriculum",
        "lucidrains/x-evolution",
        "train_parity.py --noise_pop 4 --num_generations 16 --dim 8 --batch_size 32",
        10,
        path=".",
        needs="fire accelerate x-transformers",
    ),
    Foreign(
        "spiking net, correlation",
        "norse/norse",
        "norse/task/correlation_experiment.py",
        4,
        steps=8,
        needs="norse matplotlib",
    ),
    Foreign(
        "MuZero, self-play",
        "Blackcipher101/rl_speedrun",
        "muzero.py",
        20,
        folder="rl_fundamentals/26_muzero",
        steps=30,
        needs="matplotlib",
    ),
)
