"""Public scripts that train otherwise than by batches and one loss."""

from __future__ import annotations

from benchmarks.foreign.foreign_script import Foreign

_SMALL_GRID = "--horizon 4 --num_empirical_loss 2000 --save_path out/flow.pkl.gz"

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
    Foreign(
        "ACER, truncated importance",
        "seungeunrho/minimalRL",
        "acer.py",
        150,
        steps=400,
        needs="gym",
    ),
    Foreign(
        "V-trace, off-policy",
        "seungeunrho/minimalRL",
        "vtrace.py",
        60,
        steps=150,
        needs="gym",
    ),
    Foreign(
        "PPO of an LSTM",
        "seungeunrho/minimalRL",
        "ppo-lstm.py",
        60,
        steps=150,
        needs="gym",
    ),
    Foreign(
        "SAC, learned temperature",
        "seungeunrho/minimalRL",
        "sac.py",
        400,
        steps=800,
        needs="gym",
    ),
    Foreign(
        "actor-critic each ten steps",
        "seungeunrho/minimalRL",
        "actor_critic.py",
        150,
        steps=400,
        needs="gym",
    ),
    Foreign(
        "GFlowNet on a grid",
        "GFNOrg/gflownet",
        f"toy_grid_dag.py --n_train_steps 120 {_SMALL_GRID}",
        70,
        folder="grid",
        needs="scipy tqdm",
    ),
    Foreign(
        "GFlowNet, by PPO",
        "GFNOrg/gflownet",
        f"toy_grid_dag.py --method ppo --n_train_steps 24 --ppo_num_epochs 8 {_SMALL_GRID}",
        70,
        folder="grid",
        needs="scipy tqdm",
    ),
    Foreign(
        "words by an embedding RNN",
        "hunkim/PyTorchZeroToAll",
        "12_4_hello_rnn_emb.py",
        60,
    ),
    Foreign(
        "diabetes, logistic",
        "hunkim/PyTorchZeroToAll",
        "07_diabets_logistic.py",
        55,
    ),
    Foreign(
        "averaged SGD, swapped in",
        "salesforce/awd-lstm-lm",
        "main.py --cuda --wdrop 0 --emsize 12 --nhid 16 --nlayers 2 --epochs 14 --batch_size 20 "
        "--bptt 30 --nonmono 1 --save best.pt --log-interval 10 --lr 20",
        300,
        environment="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1",
        material="text:data/penn",
    ),
    Foreign(
        "tours by REINFORCE, rollouts",
        "wouterkool/attention-learn-to-route",
        "run.py --graph_size 6 --batch_size 32 --epoch_size 640 --val_size 64 --no_cuda "
        "--embedding_dim 16 --hidden_dim 16 --n_encode_layers 1 --n_epochs 4 --baseline rollout "
        "--no_progress_bar --log_step 5 --eval_batch_size 64",
        50,
        environment="PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python",
        needs="tensorboard_logger",
    ),
    Foreign(
        "FFJORD, moving batch norm",
        "rtqichen/ffjord",
        "train_toy.py --niters 999 --dims 16-16 --val_freq 10 --viz_freq 1000 --data moons "
        "--spectral_norm True --batch_norm True --test_batch_size 50",
        33,
        steps=60,
        needs="torchdiffeq scikit-learn matplotlib",
    ),
    Foreign(
        "residual flow, learned norms",
        "rtqichen/residual-flows",
        "train_toy.py --niters 60 --dims 16-16 --nblocks 4 --batch_size 50 --test_batch_size 100 "
        "--val_freq 10 --viz_freq 1000 --data moons --learn-p True",
        33,
        needs="scikit-learn matplotlib",
    ),
    Foreign(
        "IRM, one training a penalty",
        "facebookresearch/InvariantRiskMinimization",
        "main.py --n_iterations 60 --n_reps 1 --verbose 1 --dim 4 --methods ERM,IRM",
        200,
        folder="code/experiment_synthetic",
        needs="scikit-learn scipy matplotlib",
    ),
    Foreign(
        "graph attention, best kept",
        "Diego999/pyGAT",
        "train.py --no-cuda --epochs 24 --nb_heads 2 --patience 8",
        13,
        needs="scipy",
        material="cora:data/cora",
    ),
    Foreign(
        "study in a database, trials",
        "optuna/optuna-examples",
        "pytorch/pytorch_checkpoint.py",
        170,
        steps=300,
        needs="optuna<5 torchvision",
        material="clothes:.",
    ),
    Foreign(
        "hyperbolic graph net",
        "HazyResearch/hgcn",
        "train.py --task nc --dataset cora --model HGCN --dim 8 --cuda -1 --epochs 30 "
        "--lr 0.01 --log-freq 5 --save 1 --save-dir . --manifold PoincareBall "
        "--optimizer RiemannianAdam",
        17,
        environment="DATAPATH=data",
        needs="scipy scikit-learn",
    ),
    Foreign(
        "glimpses by REINFORCE",
        "kevinzakka/recurrent-visual-attention",
        "main.py --use_gpu False --epochs 3 --batch_size 64 --hidden_size 32 --loc_hidden 16 "
        "--glimpse_hidden 16",
        40,
        environment="PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python",
        needs="torchvision tensorboard_logger matplotlib",
        material="mnist:data",
    ),
    Foreign(
        "one context after another",
        "GMvandeVen/continual-learning",
        "main.py --experiment splitMNIST --scenario class --contexts 3 --iters 30 --no-gpus "
        "--replay generative --fc-units 40 --z-dim 8 --fc-lay 2 --batch 32 --acc-n 64 "
        "--g-z-dim 8 --g-fc-uni 30 --g-fc-lay 2",
        50,
        needs="torchvision matplotlib",
        material="mnist:store/datasets/MNIST",
    ),
    Foreign(
        "Fisher of the context before",
        "GMvandeVen/continual-learning",
        "main.py --experiment splitMNIST --scenario task --contexts 3 --iters 30 --no-gpus --ncl "
        "--fc-units 40 --fc-lay 2 --batch 32 --acc-n 64 --fisher-n 40",
        50,
        needs="torchvision matplotlib",
        material="mnist:store/datasets/MNIST",
    ),
)
