"""Public scripts whose data are made here, because they would fetch them: see `material.py`."""

from __future__ import annotations

from benchmarks.foreign.foreign_script import Foreign

_EXAMPLES = "pytorch/examples"
_GAN = "eriklindernoren/PyTorch-GAN"
_LIGHTNING = "Lightning-AI/pytorch-lightning"
_PYG = "pyg-team/pytorch_geometric"
_SMALL = "--n_layer=2 --n_head=2 --n_embd=32 --block_size=32 --batch_size=8 --compile=False"
_QUICK = "--max_iters=60 --eval_interval=20 --eval_iters=3 --warmup_iters=5 --lr_decay_iters=60"


def _gan(name: str, options: str = "--n_epochs 2", kill_at: int = 30) -> Foreign:
    return Foreign(
        f"PyTorch-GAN {name}",
        _GAN,
        f"{name}.py {options} --batch_size 64 --sample_interval 9",
        kill_at,
        folder=f"implementations/{name}",
        needs="torchvision",
        material="mnist:data/mnist",
    )


def _example(name: str, script: str, kill_at: int, material: str = "mnist:data") -> Foreign:
    return Foreign(
        f"examples {name}",
        _EXAMPLES,
        script,
        kill_at,
        folder=name,
        needs="torchvision",
        material=material,
    )


def _ignite(name: str, script: str, material: str) -> Foreign:
    return Foreign(
        f"ignite {name}",
        "pytorch/ignite",
        script,
        20,
        folder="examples/" + material.partition(":")[2].removeprefix("examples/"),
        path=".",
        needs="torchvision tqdm",
        material=material,
    )


def _accelerate(name: str, folder: str, options: str = "") -> Foreign:
    return Foreign(
        f"Accelerate {name}",
        "huggingface/accelerate",
        f"{name}.py --cpu{options}",
        25,
        folder=f"examples/{folder}".removesuffix("/."),
        environment="HF_HUB_OFFLINE=1",
        needs="accelerate transformers datasets evaluate scikit-learn",
        material=f"glue:examples/{folder}",
    )


PREPARED = (
    Foreign(
        "nanoGPT characters",
        "karpathy/nanoGPT",
        f"train.py config/train_shakespeare_char.py --device=cpu {_SMALL} {_QUICK}",
        35,
        material="characters:data/shakespeare_char",
    ),
    _example("mnist", "main.py --epochs 2 --save-model --no-accel --log-interval 5", 30),
    _example("mnist_rnn", "main.py --epochs 2 --save-model --log-interval 5", 30),
    _example("vae", "main.py --epochs 3 --batch-size 64 --no-accel", 40),
    _example("siamese_network", "main.py --epochs 1 --no-accel --save-model", 14),
    _example(
        "mnist_forward_forward",
        "main.py --epochs 8 --no_accel --train_size 600 --test_size 200 --save_model",
        6,
        "mnist:mnist_forward_forward/data",
    ),
    _example(
        "dcgan",
        "main.py --dataset fake --ngf 8 --ndf 8 --workers 0 --niter 2 --manualSeed 1",
        18,
        "",
    ),
    _example(
        "imagenet",
        "main.py -a resnet18 --epochs 2 -b 8 -j 0 --no-accel -p 1 ../pictures",
        8,
        "pictures:pictures",
    ),
    Foreign(
        "examples time sequences, L-BFGS",
        _EXAMPLES,
        "train.py --steps 8",
        5,
        folder="time_sequence_prediction",
        environment="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1",
        needs="matplotlib",
        material="waves:time_sequence_prediction",
    ),
    Foreign(
        "examples word_language_model",
        _EXAMPLES,
        "main.py --epochs 2 --emsize 16 --nhid 16 --use-optimizer --lr 0.01 --log-interval 10",
        60,
        folder="word_language_model",
        material="text:word_language_model/data/wikitext-2",
    ),
    _gan("gan"),
    _gan("wgan", "--n_epochs 4"),
    _gan("aae"),
    _gan("ebgan", "--n_epochs 1", 12),
    _gan("infogan", "--n_epochs 1", 12),
    _gan("lsgan", "--n_epochs 1 --img_size 16", 12),
    _gan("softmax_gan"),
    _ignite("mnist", "mnist.py --epochs 2 --log_interval 5", "mnist:examples/mnist"),
    _ignite(
        "mnist that saves",
        "mnist_save_resume_engine.py --epochs 2 --log_interval 5 --checkpoint_every 10",
        "mnist:examples/mnist",
    ),
    Foreign(
        "opacus DP-SGD mnist",
        "pytorch/opacus",
        "examples/mnist.py --device cpu -b 64 -n 2 --data-root data --lr 0.1",
        30,
        path=".",
        needs="opacus torchvision tqdm",
        material="mnist:data",
    ),
    Foreign(
        "opacus DP-SGD DCGAN",
        "pytorch/opacus",
        "examples/dcgan.py --device cpu --data-root data --workers 0 --batch-size 16 --ngf 8 "
        "--ndf 8 --nz 16 --imageSize 64 --epochs 1 --manualSeed 3 --target-digit 8",
        5,
        path=".",
        needs="opacus torchvision tqdm",
        material="mnist:data",
    ),
    Foreign(
        "federated averaging",
        "shaoxiongji/federated-learning",
        "main_fed.py --dataset mnist --iid --num_channels 1 --model mlp --epochs 4 --gpu -1 "
        "--num_users 5 --frac 0.4 --local_ep 1 --local_bs 50",
        20,
        needs="torchvision matplotlib",
        material="mnist:../data/mnist",
    ),
    Foreign(
        "schedule-free mnist",
        "facebookresearch/schedule_free",
        "main.py --epochs 2 --save-model --no-cuda --log-interval 5",
        30,
        folder="examples/mnist",
        path=".",
        needs="torchvision",
        material="mnist:examples/data",
    ),
    Foreign(
        "Lightning BoringModel",
        _LIGHTNING,
        "examples/pytorch/bug_report/bug_report_model.py",
        1,
        needs="lightning",
    ),
    Foreign(
        "Lightning GAN",
        _LIGHTNING,
        "generative_adversarial_net.py",
        20,
        folder="examples/pytorch/domain_templates",
        steps=90,
        needs="lightning torchvision",
        material="mnist:examples/pytorch/domain_templates/data",
    ),
    Foreign(
        "Fabric image classifier",
        _LIGHTNING,
        "train_fabric.py --epochs 2 --save-model --log-interval 5",
        30,
        folder="examples/fabric/image_classifier",
        needs="lightning torchvision torchmetrics",
        material="mnist:Datasets",
    ),
    Foreign(
        "Fabric folds",
        _LIGHTNING,
        "train_fabric.py --epochs 1 --folds 3",
        9,
        folder="examples/fabric/kfold_cv",
        needs="lightning torchvision torchmetrics scikit-learn",
        material="mnist:Datasets",
    ),
    Foreign(
        "Fabric PPO",
        _LIGHTNING,
        "train_fabric.py --total-timesteps 1024 --num-steps 64 --update-epochs 2 --seed 3",
        20,
        folder="examples/fabric/reinforcement_learning",
        needs="lightning gymnasium torchmetrics",
    ),
    Foreign(
        "GCN of Kipf",
        "tkipf/pygcn",
        "train.py --no-cuda --epochs 60",
        35,
        folder="pygcn",
        path=".",
        needs="scipy",
        material="cora:data/cora",
    ),
    Foreign(
        "PyG second minimum",
        _PYG,
        "examples/lcm_aggr_2nd_min.py",
        60,
        steps=150,
        needs="torch_geometric",
    ),
    Foreign(
        "deepxde Helmholtz",
        "lululxvi/deepxde",
        "examples/pinn_forward/Helmholtz_Dirichlet_2d.py",
        90,
        path=".",
        steps=150,
        environment="DDE_BACKEND=pytorch",
        needs="scipy scikit-optimize",
    ),
    Foreign(
        "TRL SFT by HF's trainer",
        "huggingface/trl",
        "trl/scripts/sft.py --model_name_or_path tiny --dataset_name lines --max_steps 30 "
        "--per_device_train_batch_size 2 --output_dir out --save_steps 10 --save_total_limit 2 "
        "--eval_strategy steps --eval_steps 10 --dataset_test_split train --report_to none "
        "--use_cpu --logging_steps 2 --max_length 32",
        16,
        needs="trl transformers datasets peft",
        material="language:.",
    ),
    Foreign(
        "TRL SFT, data streamed",
        "huggingface/trl",
        "trl/scripts/sft.py --model_name_or_path tiny --dataset_name lines --dataset_streaming "
        "--max_steps 30 "
        "--per_device_train_batch_size 2 --output_dir out --save_steps 10 --save_total_limit 2 "
        "--eval_strategy steps --eval_steps 10 --dataset_test_split train --report_to none "
        "--use_cpu --logging_steps 2 --max_length 32",
        16,
        needs="trl transformers datasets peft",
        material="language:.",
    ),
    Foreign(
        "timm train",
        "huggingface/pytorch-image-models",
        "train.py --data-dir pictures --model test_vit -b 8 --epochs 2 --device cpu --workers 1 "
        "--num-classes 2 --warmup-epochs 0 --log-interval 1 --img-size 160 --experiment one",
        7,
        path=".",
        needs="timm torchvision",
        material="pictures:pictures",
    ),
    Foreign(
        "tutorial VAE",
        "yunjey/pytorch-tutorial",
        "main.py",
        60,
        folder="tutorials/03-advanced/variational_autoencoder",
        needs="torchvision",
        material="mnist:tutorials/data",
    ),
    Foreign(
        "self-supervised graph infomax of PyG",
        _PYG,
        "examples/infomax_transductive.py",
        60,
        steps=120,
        needs="torch_geometric scikit-learn",
        material="planetoid:data/Cora/Cora/raw",
    ),
    Foreign(
        "PyG variational autoencoder",
        _PYG,
        "examples/autoencoder.py --variational --epochs 100",
        60,
        needs="torch_geometric scikit-learn",
        material="planetoid:data/Planetoid/Cora/raw",
    ),
    Foreign(
        "PyG GCN",
        _PYG,
        "examples/gcn.py --epochs 150",
        90,
        needs="torch_geometric",
        material="planetoid:data/Planetoid/Cora/raw",
    ),
    _accelerate("nlp_example", "."),
    _accelerate("early_stopping", "by_feature"),
    _accelerate("local_sgd", "by_feature"),
    _accelerate("checkpointing", "by_feature", " --checkpointing_steps 10 --output_dir out"),
    Foreign(
        "diffusion by Diffusers, pictures",
        "huggingface/diffusers",
        "train_unconditional.py --train_data_dir pictures/train --model_config_name_or_path unet "
        "--resolution 16 --train_batch_size 8 --num_epochs 4 --use_ema --checkpointing_steps 8 "
        "--ddpm_num_steps 20 --ddpm_num_inference_steps 3 --save_images_epochs 2 --output_dir out "
        "--save_model_epochs 2 --eval_batch_size 4 --dataloader_num_workers 0",
        14,
        folder="examples/unconditional_image_generation",
        path="src",
        needs="accelerate datasets torchvision",
        material="pictures:examples/unconditional_image_generation/pictures "
        "unet:examples/unconditional_image_generation/unet",
    ),
    Foreign(
        "TRL DPO with LoRA",
        "huggingface/trl",
        "trl/scripts/dpo.py --model_name_or_path tiny --dataset_name preferences --max_steps 24 "
        "--per_device_train_batch_size 2 --output_dir out --save_steps 8 --save_total_limit 2 "
        "--eval_strategy steps --eval_steps 8 --dataset_test_split train --report_to none "
        "--use_cpu --logging_steps 2 --max_length 32 --use_peft --lora_r 4 --lora_alpha 8 "
        "--lora_target_modules q_proj v_proj --learning_rate 1e-3",
        13,
        needs="trl transformers datasets peft",
        material="language:. preferences:preferences",
    ),
    Foreign(
        "TRL reward model",
        "huggingface/trl",
        "trl/scripts/reward.py --model_name_or_path tiny --dataset_name preferences --max_steps 24 "
        "--per_device_train_batch_size 2 --output_dir out --save_steps 8 --save_total_limit 2 "
        "--eval_strategy steps --eval_steps 8 --dataset_test_split train --report_to none "
        "--use_cpu --logging_steps 2 --max_length 32 --learning_rate 1e-3",
        11,
        needs="trl transformers datasets peft",
        material="language:. preferences:preferences",
    ),
    Foreign(
        "PyG links, GCN",
        _PYG,
        "examples/link_pred.py",
        60,
        steps=100,
        needs="torch_geometric scikit-learn",
        material="planetoid:data/Planetoid/Cora/raw",
    ),
    Foreign(
        "PyG attention",
        _PYG,
        "examples/gat.py --epochs 80",
        50,
        needs="torch_geometric",
        material="planetoid:data/Planetoid/Cora/raw",
    ),
    *(
        Foreign(
            f"torchtune {recipe}",
            "pytorch/torchtune",
            f"recipes/{recipe}_finetune_single_device.py --config tiny/{recipe}.yaml",
            18,
            path=".",
            needs="torchtune torchao sentencepiece datasets",
            material="torchtune:tiny",
        )
        for recipe in ("full", "lora")
    ),
)
