# SPDX-License-Identifier: Apache-2.0
"""What scripts/golden asks: for each group the id of a question and its command, always in this order.

In tables a line is an id and the words of a command; @ stands for --model llama-3-8b --cluster dgx-h100 --gpus 16.
Elsewhere axes are walked through in steps that have no divisor in common with their lengths, so that every value occurs
and all are spread; nothing is drawn at random.
"""
import itertools

STRATEGIES = """single ddp zero1 zero2 zero3 fsdp1 fsdp1-grad-op fsdp2 fsdp2-noreshard hsdp yafsdp yafsdp-zero2 fsdp2-hpz
    distributed-optimizer megatron-fsdp""".split()
FRAMEWORKS = """torch-eager torch-compile torch-compile-eager-loss hf-eager hf-trainer megatron-core megatron-core-nemo
    megatron-core-nemo-24 nemo-mlperf native mpt-eager mpt-eager-2023-05 megatron-deepspeed megatron-lm-2021 aleph-alpha
    nanotron maxtext paxml""".split()
CLUSTERS = """dgx-h100 dgx-a100-80g a100-80g-4xhdr200 dgx-b200 gb200-nvl72 p5 rtx-4090-pcie8 mi300x-8x400 dgx-h200
    l40s-pcie8 dgx-b300 grand-teton-h100-96g azure-nd96asr-a100-v4 h100-nvl8 gb300-nvl72 a3-mega gh200-1x400g""".split()
DENSE = """llama-3-8b qwen2.5-7b gemma-2-9b granite-3.0-8b llama-2-13b mistral-7b mpt-7b phi-4-mini qwen3-8b pythia-2.8b
    olmo-2-7b llama-3.2-3b falcon-7b""".split()
EXPERTS = """mixtral-8x7b qwen3-30b-a3b deepseek-v2-lite gpt-oss-20b qwen1.5-moe-a2.7b qwen3-next-80b-a3b
    nemotron-3-nano-30b-a3b""".split()

# Kinds of plans: the models that they are asked of, and settings of which each question takes one.
KINDS = {
    "plain": (DENSE, """
        --ckpt-layers 0
        --ckpt-layers all
        --ckpt-layers 8 --recompute norm,swiglu
        --micro-batch 2 --grad-accum 4
        --ckpt-layers all --recompute selective-op
        --reduce-dtype bf16 --loss-chunks 4
        --master-dtype bf16 --moment-dtype bf16
        --attention eager
        --allocator native
        --param-dtype fp32
        --optimizer adamw-8bit
        --optimizer muon
        --packed-length 512
        --optimizer sgd --buffers 3 --prefetch 2
        --deterministic on
        --precision fp16
        --shard-group 8"""),
    "tp": (DENSE, """
        --tp 2
        --tp 4 --sp off
        --tp 8 --tp-overlap userbuffers
        --tp 4 --tp-overlap async
        --tp 2 --cuda-graphs layers
        --tp 2 --rank-order dp-tp-cp-ep-pp
        --tp 4 --ckpt-layers all"""),
    "pp": (DENSE, """
        --pp 2 --grad-accum 4 --pp-schedule gpipe
        --pp 4 --grad-accum 8
        --pp 2 --grad-accum 4 --virtual-stages 2
        --pp 4 --grad-accum 8 --pp-schedule zb1p
        --pp 2 --grad-accum 8 --pp-schedule zbv --virtual-stages 2
        --tp 2 --pp 2 --grad-accum 16
        --pp 2 --grad-accum 8 --pp-schedule dualpipe --virtual-stages 2"""),
    "cp": (DENSE, """
        --cp 2
        --cp 4 --cp-comm all-gather --seq-len 16k
        --cp 2 --cp-comm a2a
        --cp 2 --tp 2
        --cp 4 --seq-len 32k --ckpt-layers all"""),
    "ep": (EXPERTS, """
        --ep 4
        --ep 8 --dispatcher allgather
        --ep 4 --dispatcher deepep
        --ep 4 --tp 2 --etp 2
        --ep 2 --pp 2 --grad-accum 4
        --ep 8 --dispatcher hybridep
        --ep 4 --ep-overlap on
        --ep 8 --expert-load balanced"""),
    "fp8": (DENSE, """
        --precision fp8
        --precision fp8 --fp8-recipe delayed
        --precision fp8 --fp8-recipe rowwise
        --precision fp8 --fp8-recipe block --fp8-params on
        --precision fp8 --fp8-recipe mxfp8
        --precision nvfp4
        --precision fp8 --tp 2"""),
    "lora": (DENSE, """
        --lora 16
        --task lora
        --lora 64 --ckpt-layers all
        --lora 8 --tp 2
        --lora 256 --micro-batch 2
        --task lora --packed-length 512 --pp 2 --grad-accum 4"""),
    "qlora": (DENSE, """
        --task qlora
        --lora 16 --quantize nf4
        --lora 64 --quantize int8
        --task qlora --quantize fp8
        --task qlora --ckpt-layers all --micro-batch 4"""),
    "moe": (EXPERTS, """
        --ep 1
        --expert-load balanced
        --expert-capacity 1.25
        --tp 2
        --expert-load no-aux-loss
        --ckpt-layers all --recompute full
        --precision fp8
        --task lora"""),
    "offload": (DENSE, """
        --offload optimizer
        --offload activations:8
        --offload optimizer --ckpt-layers all
        --offload activations:4 --tp 2
        --offload optimizer --grad-accum 4"""),
}


def lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def table(verb, text, end=""):
    """Commands of a verb by id."""
    asked = {}
    for line in lines(text):
        name, _, words = line.partition(" ")
        words = words.strip().replace("@", "--model llama-3-8b --cluster dgx-h100 --gpus 16")
        asked[name] = " ".join(f"{verb} {words} {end}".split())
    return asked


def predictions():
    """Each strategy with each kind of plan, on two frameworks: a strategy meets them all, and so does a kind."""
    asked = {}
    for (s, strategy), (k, kind), turn in itertools.product(enumerate(STRATEGIES), enumerate(KINDS), range(2)):
        models, settings = KINDS[kind]
        setting = lines(settings)[(2 * s + turn) % len(lines(settings))]
        framework = FRAMEWORKS[(7 * s + 2 * k + turn) % len(FRAMEWORKS)]
        model = models[(5 * s + 3 * k + 4 * turn) % len(models)]
        cluster = CLUSTERS[(11 * s * len(KINDS) + 10 * k + 5 * turn) % len(CLUSTERS)]
        gpus = 1 if strategy == "single" else 8 if "pcie" in cluster else 16
        length = "" if "--seq-len" in setting else "--seq-len 2048"
        words = f"--model {model} --cluster {cluster} --gpus {gpus} --strategy {strategy} --stack {framework} {length}"
        asked[f"{strategy}.{kind}.{framework}"] = f"predict {words} {setting} --json"
    # Parts of the document that only some flags ask for.
    return asked | table("predict", """
        flag.compared          @ --strategy yafsdp,fsdp1,zero3
        flag.explained         @ --strategy fsdp2 --explain
        flag.explained.tp      @ --tp 2 --pp 2 --global-batch 32 --explain
        flag.whole-run         @ --strategy fsdp2 --tokens 1T
        flag.whole-run.priced  @ --strategy fsdp2 --tokens 1T --price dgx-h100=2 --pue 1.1 --grid-kg 0.1
        flag.jitter            @ --strategy fsdp2 --jitter 0.02
        flag.jitter.pp         @ --pp 4 --global-batch 32 --jitter 0.03 --rank-jitter 0.01
        flag.set               @ --strategy fsdp2 --set gpu.peak_bf16_flops=5e14
        flag.network           @ --strategy fsdp2 --node-network 100Gb/s
        flag.power             @ --strategy fsdp2 --power-limit-watts 400
        flag.require-fit       @ --strategy ddp --micro-batch 8 --require-fit
        flag.hybrid            @ --strategy hsdp --shard-group 8""", "--json")


def ledgers():
    published = "profiles/data/published"
    return table("validate", f"""
        ledger          --gemm {published}/gemm.csv --collectives {published}/collectives.csv
        parallel        --ledger {published}/parallel.csv --stage-memory {published}/stage_memory.csv
        strangers       --ledger {published}/strangers.csv
        strangers-lora  --ledger {published}/strangers_lora.csv --whole-runs""", "--json")


def tunings():
    asked = table("tune", """
        8b.h100x8       llama-3-8b dgx-h100 8
        8b.h100x16      llama-3-8b dgx-h100 16
        8b.a100x8       llama-3.1-8b dgx-a100-80g 8
        70b.h100x64     llama-3-70b dgx-h100 64
        70b.b200x32     llama-3.1-70b dgx-b200 32
        70b.native      llama-3-70b a100-80g-4xhdr200 256 --seq-len 2048 --global-batch 1024 --stack native
        34b.hf          llama-2-34b a100-80g-4xhdr200 128 --seq-len 2048 --stack hf-eager
        batch           llama-3-8b dgx-h100 8 --seq-len 8k --global-batch 64
        for.torchtitan  llama-3-8b dgx-h100 16 --for torchtitan
        for.fsdp2       qwen2.5-7b dgx-h100 8 --for fsdp2
        for.megatron    llama-3-8b dgx-h100 16 --for megatron
        for.accelerate  mistral-7b p4de 8 --for accelerate
        for.deepspeed   llama-2-13b p4d 16 --for deepspeed
        for.yafsdp      llama-2-13b a100-80g-4xhdr200 64 --for yafsdp
        for.native      llama-3.2-3b dgx-h100 8 --for native
        for.two         llama-3-8b dgx-h200 8 --for torchtitan,accelerate
        sft             llama-3.1-8b dgx-h100 8 --task sft
        lora            llama-3.1-8b g5 8 --task lora
        qlora           llama-3.1-70b dgx-a100-80g 8 --task qlora
        qlora.one-card  llama-3.1-8b rtx-4090-pcie8 1 --task qlora
        moe             mixtral-8x7b dgx-h100 32 --global-batch 256
        moe.small       qwen3-30b-a3b dgx-h100 16
        moe.sft         qwen3-30b-a3b dgx-h100 8 --task sft
        mla             deepseek-v2-lite dgx-b200 8
        mamba           nemotron-h-56b dgx-h100 32 --seq-len 4k --global-batch 256
        nothing         llama-3-70b l40s-pcie8 8 --global-batch 64
        nothing.fixed   llama-2-70b a100-80g-4xhdr200 256 --stack hf-eager --strategy fsdp1 --micro-batch 1 --ckpt-layers 20
        one-card        llama-3.1-8b rtx-4090-pcie8 1
        two-cards       llama-3.2-3b rtx-3090-pcie8 2
        allow           llama-3-8b dgx-h100 8 --allow bf16-reduce,bf16-master,bf16-moments,fp8,adamw-8bit
        allow.software  llama-3-8b dgx-h100 16 --allow software
        robust          llama-3-8b dgx-h100 8 --robust --stack torch-compile
        headroom        llama-3-8b dgx-h100 8 --objective headroom --strategy fsdp2
        dollars         llama-3-8b dgx-h100 8 --objective tokens-per-dollar --headroom 10%
        recompute       llama-3-8b dgx-a100-80g 8 --stack torch-eager --recompute-for-speed
        tp              llama-3-8b dgx-h100 16 --tp 2
        pp              llama-3-8b dgx-h100 16 --pp 4 --global-batch 64
        fp8             llama-3-8b dgx-b200 8 --precision fp8
        mi300x          llama-3-8b mi300x-8x400 8
        nvl72           llama-3-70b gb200-nvl72 72 --seq-len 4k --global-batch 288""")
    for name, command in asked.items():
        verb, model, cluster, gpus, *flags = command.split()
        asked[name] = " ".join([verb, "--model", model, "--cluster", cluster, "--gpus", gpus, *flags, "--threads 1 --json"])
    return asked


def sizings():
    return table("size", """
        one          --model llama-3-8b --tokens 100B --clusters dgx-h100 --max-gpus 128
        two          --model llama-3-8b --tokens 100B --clusters dgx-h100,dgx-b200 --max-gpus 128
        deadline     --model llama-3-8b --tokens 1T --deadline 30d --clusters dgx-h100 --max-gpus 512
        budget       --model llama-3-8b --tokens 1T --budget 200k --clusters dgx-h100 --max-gpus 256
        both         --model llama-2-7b --tokens 200B --deadline 3w --budget 50k --clusters p4de,p5 --max-gpus 128
        neither-met  --model llama-3-70b --tokens 15T --deadline 1d --clusters dgx-h100 --max-gpus 64
        70b          --model llama-3-70b --tokens 1T --clusters dgx-b200 --max-gpus 256 --global-batch 1024
        fixed-gpus   --model llama-3-8b --tokens 100B --cluster dgx-h100 --gpus 64
        spot         --model llama-3-8b --tokens 100B --clusters p5 --max-gpus 64 --price-kind spot --preemption-hours 12
        reserved     --model llama-3-8b --tokens 100B --clusters dgx-h100 --max-gpus 64 --price-kind reserved
        priced       --model llama-3-8b --tokens 100B --clusters dgx-h100,p5 --max-gpus 64 --price p5=2 --price dgx-h100=3
        compared     --model llama-2-13b --tokens 300B --clusters a100-80g-4xhdr200 --max-gpus 128 --compare yafsdp,fsdp1
        lora         --model llama-3.1-8b --tokens 1B --task lora --clusters rtx-4090-pcie8,g5 --max-gpus 8
        qlora        --model llama-3.1-70b --tokens 100M --task qlora --clusters dgx-a100-80g --max-gpus 8
        moe          --model qwen3-30b-a3b --tokens 100B --clusters dgx-h100 --max-gpus 64 --seq-len 4k
        fp8          --model llama-3-8b --tokens 100B --clusters dgx-b200 --max-gpus 64 --precision fp8
        failures     --model llama-3-8b --tokens 1T --clusters dgx-h100 --max-gpus 256 --mtbf-hours 5000 --restart-s 3600
        energy       --model llama-3.2-1b --tokens 100B --clusters dgx-h100 --max-gpus 32 --pue 1.1 --grid-kg 0.05
        strategy     --model gpt2-xl --tokens 50B --clusters dgx-a100-80g --max-gpus 64 --strategy yafsdp --stack native
        unpriced     --model llama-3.2-1b --tokens 10B --clusters grand-teton-h100-96g --max-gpus 32""", "--json")


def traces():
    plans = [f"dp.{strategy} --gpus {1 if strategy == 'single' else 8} --strategy {strategy} --grad-accum {1 + s % 2}"
             for s, strategy in enumerate(STRATEGIES)]
    plans += lines("""
        dp.native         --gpus 8 --strategy yafsdp --stack native --ckpt-layers 4
        dp.hf-eager       --gpus 8 --strategy fsdp1 --stack hf-eager --ckpt-layers 4
        dp.mpt-eager      --gpus 8 --strategy zero2 --stack mpt-eager --ckpt-layers 4
        dp.megatron-core  --gpus 8 --strategy zero1 --stack megatron-core --ckpt-layers 4
        dp.torch-eager    --gpus 8 --strategy fsdp2 --stack torch-eager --ckpt-layers 4
        dp.fp8            --gpus 8 --strategy fsdp2 --precision fp8
        dp.lora           --gpus 8 --strategy fsdp2 --lora 16
        dp.offload        --gpus 8 --strategy zero2 --offload optimizer
        pp.gpipe          --gpus 8 --pp 4 --grad-accum 8 --pp-schedule gpipe
        pp.1f1b           --gpus 8 --pp 4 --grad-accum 8 --pp-schedule 1f1b
        pp.interleaved    --gpus 8 --pp 4 --grad-accum 8 --pp-schedule interleaved --virtual-stages 2
        pp.zb1p           --gpus 8 --pp 4 --grad-accum 8 --pp-schedule zb1p
        pp.zbv            --gpus 8 --pp 4 --grad-accum 8 --pp-schedule zbv --virtual-stages 2
        pp.dualpipe       --gpus 8 --pp 4 --grad-accum 8 --pp-schedule dualpipe --virtual-stages 2
        tp2               --gpus 8 --tp 2
        tp4.sp-off        --gpus 8 --tp 4 --sp off
        tp4.fsdp2         --gpus 8 --tp 4 --strategy fsdp2
        tp2.userbuffers   --gpus 8 --tp 2 --tp-overlap userbuffers
        tp2.async         --gpus 8 --tp 2 --tp-overlap async
        tp2.pp2           --gpus 8 --tp 2 --pp 2 --grad-accum 4
        tp2.pp2.fsdp2     --gpus 8 --tp 2 --pp 2 --grad-accum 4 --strategy fsdp2
        cp2               --gpus 8 --cp 2
        cp2.a2a           --gpus 8 --cp 2 --cp-comm a2a""")
    usual = "--cluster dgx-h100 --seq-len 2048 --trace trace.json"
    return (table("predict --model llama-3.2-1b", "\n".join(plans), usual) |
            table("predict --model qwen1.5-moe-a2.7b", """
        ep4               --gpus 8 --ep 4
        ep4.pp2           --gpus 8 --ep 4 --pp 2 --grad-accum 4""", usual))


def losses():
    """Layouts that train. Those of one batch give the losses of one rank that accumulates it, but for tensor parallelism."""
    precisions = lines("""
        --param-dtype fp32
        --param-dtype bf16
        --param-dtype bf16 --master-dtype bf16 --moment-dtype bf16
        --param-dtype bf16 --reduce-dtype bf16""")
    kept = lines("""
        --ckpt-layers 0
        --ckpt-layers all
        --ckpt-layers 2 --recompute norm,swiglu
        --micro-batch 2 --grad-accum 2
        --ckpt-layers 3 --recompute selective-op
        --buffers 3 --prefetch 1
        --ckpt-layers 2 --recompute attention,block""")
    plans = []
    for (s, strategy), ranks in itertools.product(enumerate(STRATEGIES[1:STRATEGIES.index("fsdp2-hpz")]), [4, 2, 3]):
        group = f"--ranks {ranks}" if strategy != "hsdp" else f"--ranks {2 * ranks} --shard-group {ranks}"
        plans.append(f"{strategy}.{ranks} {group} --strategy {strategy} {precisions[(s + ranks) % len(precisions)]} "
                     f"{kept[(3 * s + 2 * ranks) % len(kept)]}")
    for s, strategy in enumerate(["ddp", "zero1", "zero2", "zero3", "fsdp2", "yafsdp"]):
        plans.append(f"tp2.{strategy} --ranks 4 --tp 2 --strategy {strategy} --sp {'off' if s % 2 else 'on'} "
                     f"{precisions[s % len(precisions)]}")
    schedules = ["gpipe", "1f1b", "interleaved --virtual-stages 2", "zb1p", "zbv --virtual-stages 2"]
    for s, schedule in enumerate(schedules):
        name, pipeline = schedule.split()[0], f"--pp 2 --grad-accum 4 --pp-schedule {schedule}"
        plans += [f"pp2.{name} --ranks 2 {pipeline} {precisions[s % len(precisions)]}",
                  f"pp2.dp2.{name} --ranks 4 {pipeline} --strategy {['ddp', 'zero1', 'yafsdp', 'fsdp2', 'zero2'][s]}",
                  f"pp2.tp2.{name} --ranks 4 --tp 2 {pipeline} --ckpt-layers {s}"]
    plans += lines("""
        single            --ranks 1 --strategy single
        single.4          --ranks 1 --strategy single --grad-accum 4
        single.parts      --ranks 1 --strategy single --grad-accum 4 --sum-shape 2
        single.no-decay   --ranks 1 --strategy single --beta1 0 --weight-decay 0 --clip 0 --schedule constant
        tp4               --ranks 4 --tp 4 --ckpt-layers 2
        tp2.parts         --ranks 2 --tp 2 --grad-accum 4 --sum-shape 2
        tp2.order         --ranks 4 --tp 2 --strategy ddp --rank-order dp-tp-cp-ep-pp
        pp4.1f1b          --ranks 4 --pp 4 --grad-accum 8
        pp4.layout        --ranks 4 --pp 4 --grad-accum 4 --pp-layout Et|t|t|tL
        fp8.tensorwise    --ranks 2 --strategy fsdp2 --precision fp8 --fp8-recipe tensorwise
        fp8.rowwise       --ranks 2 --strategy fsdp2 --precision fp8 --fp8-recipe rowwise
        fp8.mxfp8         --ranks 2 --strategy fsdp2 --precision fp8 --fp8-recipe mxfp8
        fp8.yafsdp        --ranks 2 --strategy yafsdp --precision fp8 --ckpt-layers all
        fp8.ddp           --ranks 2 --strategy ddp --precision fp8 --fp8-recipe mxfp8 --grad-accum 2
        clock             --ranks 2 --clock virtual
        streams           --ranks 4 --strategy yafsdp --streams threads
        streams.shuffled  --ranks 4 --strategy fsdp2 --streams shuffled
        seed              --ranks 2 --seed 7 --lr 1e-2 --schedule wsd --warmup 1
        hold-out          --ranks 2 --strategy zero3 --hold-out 0.2 --warmup 2
        clip              --ranks 2 --strategy fsdp1 --clip 0.1
        prefetch          --ranks 4 --strategy fsdp2 --prefetch 0
        buffers           --ranks 4 --strategy yafsdp --buffers 4
        accumulation      --ranks 2 --strategy yafsdp-zero2 --grad-accum 3
        recompute.ffn     --ranks 2 --ckpt-layers all --recompute ffn
        refused           --ranks 2 --strategy megatron-fsdp""")
    examples = "profiles/data/examples"
    usual = "--seq-len 32 --steps 3 --eval-sequences 4 --device host --threads 2 --save none --out run"
    asked = table(f"run --model {examples}/tiny-llama.json --data {examples}/pride-and-prejudice.txt", "\n".join(plans), usual)
    families = """cwm ernie4_5 gemma gemma2 glm glm4 gpt2 gpt_bigcode gpt_neox helium llama3 ministral mistral mpt phi3 qwen2
        qwen3 seed_oss stablelm starcoder2 vaultgemma""".split()
    layouts = ["--ranks 1 --strategy single", "--ranks 2 --strategy fsdp2",
               "--ranks 2 --pp 2 --grad-accum 2 --strategy ddp --param-dtype bf16"]
    for f, family in enumerate(families):
        asked |= table(f"run --model tests/data/reference/{family}/config.json --data synthetic",
                       f"family.{family} {layouts[f % 3]}", usual)
    return asked


def texts():
    """Lines of bash, in an empty folder that links to profiles and tests, with shardwright on PATH."""
    verbs = """predict tune size run compare measure calibrate anchor validate profile inspect export kit import-config
        import-memory report prices mcp doctor completion""".split()
    asked = {"help": "shardwright --help", "help.none": "shardwright"}
    asked |= {f"help.{verb}": f"shardwright {verb} --help" for verb in verbs}
    asked |= table("shardwright predict", """
        predict.usual             @
        predict.fsdp2             @ --strategy fsdp2
        predict.explain           @ --strategy fsdp2 --explain
        predict.compared          @ --strategy yafsdp,fsdp1,zero3
        predict.compared.explain  @ --strategy yafsdp,fsdp1 --explain
        predict.tp                @ --tp 2 --pp 2 --global-batch 32
        predict.tp.explain        @ --tp 4 --explain
        predict.interleaved       @ --pp 4 --virtual-stages 2 --global-batch 32
        predict.cp                @ --cp 2 --seq-len 32k
        predict.moe               --model mixtral-8x7b --cluster dgx-h100 --gpus 32 --ep 8
        predict.moe.explain       --model qwen3-30b-a3b --cluster dgx-h100 --gpus 16 --ep 4 --explain
        predict.fp8               @ --strategy fsdp2 --precision fp8
        predict.lora              @ --task lora
        predict.qlora             @ --task qlora --micro-batch 2
        predict.offload           @ --strategy zero2 --offload optimizer
        predict.does-not-fit      @ --strategy ddp --micro-batch 4
        predict.large             @ --strategy fsdp2 --micro-batch 2 --ckpt-layers 8
        predict.one-card          --model llama-3.2-1b --cluster rtx-4090-pcie8 --gpus 1
        predict.published         --model llama-3-70b --cluster a100-80g-4xhdr200 --gpus 256 --strategy yafsdp,fsdp1 --stack hf-eager
        predict.whole-run         @ --strategy fsdp2 --tokens 1T
        predict.jitter            @ --strategy fsdp2 --jitter 0.02
        predict.native            @ --stack native
        predict.megatron          @ --stack megatron-core --strategy distributed-optimizer
        predict.mi300x            --model llama-3-8b --cluster mi300x-8x400 --gpus 8 --strategy fsdp2
        predict.v100              --model gpt2-xl --cluster dgx-1-v100 --gpus 8 --strategy ddp --precision fp16
        predict.nvl72             --model llama-3-70b --cluster gb200-nvl72 --gpus 144 --tp 4 --global-batch 288
        predict.mamba             --model nemotron-h-56b --cluster dgx-h100 --gpus 32
        predict.set               @ --set gpu.peak_bf16_flops=5e14
        predict.packed            @ --task sft --packed-length 700
        predict.network           @ --node-network 100Gb/s
        predict.power             @ --power-limit-watts 400
        predict.long              @ --seq-len 128k --ckpt-layers all --strategy fsdp2""")
    asked |= table("shardwright --color always predict", "predict.colour @")
    asked |= table("LC_ALL=C shardwright predict", "predict.ascii @ --strategy fsdp2")
    asked |= table("shardwright tune", """
        tune.8b        --model llama-3-8b --cluster dgx-h100 --gpus 8
        tune.16        @
        tune.batch     @ --seq-len 8k --global-batch 64
        tune.native    @ --stack native
        tune.robust    @ --stack torch-compile --robust
        tune.for       @ --for torchtitan
        tune.lora      --model llama-3.1-8b --cluster g5 --gpus 8 --task lora
        tune.qlora     --model llama-3.1-70b --cluster dgx-a100-80g --gpus 8 --task qlora
        tune.one-card  --model llama-3.1-8b --cluster rtx-4090-pcie8 --gpus 1
        tune.nothing   --model llama-2-70b --cluster dgx-a100-80g --gpus 64 --stack hf-eager --strategy fsdp1 --ckpt-layers 20
        tune.headroom  @ --objective headroom --strategy fsdp2
        tune.allow     @ --stack torch-compile --strategy fsdp2 --allow bf16-reduce,adamw-8bit
        tune.moe       --model qwen3-30b-a3b --cluster dgx-h100 --gpus 16 --global-batch 64""", "--threads 1")
    asked |= table("shardwright size", """
        size.two       --model llama-3-8b --tokens 100B --clusters dgx-h100,dgx-b200 --max-gpus 64
        size.deadline  --model llama-3-8b --tokens 1T --deadline 30d --clusters dgx-h100 --max-gpus 256
        size.budget    --model llama-3-8b --tokens 1T --budget 100k --clusters dgx-h100 --max-gpus 64
        size.spot      --model llama-3.2-1b --tokens 100B --clusters p5 --max-gpus 32 --price-kind spot --preemption-hours 12
        size.compared  --model llama-2-13b --tokens 300B --clusters a100-80g-4xhdr200 --max-gpus 64 --compare yafsdp,fsdp1
        size.lora      --model llama-3.1-8b --tokens 1B --task lora --clusters g5 --max-gpus 8""")
    asked |= table("shardwright inspect", """
        inspect.models         models
        inspect.clusters       clusters
        inspect.gpus           gpus
        inspect.stacks         stacks
        inspect.llama          model llama-3-8b
        inspect.llama.json     model llama-3-8b --seq-len 4k --json
        inspect.gpt2           model gpt2
        inspect.gemma-2        model gemma-2-9b
        inspect.deepseek-v3    model deepseek-v3
        inspect.mixtral        model mixtral-8x7b
        inspect.qwen3-next     model qwen3-next-80b-a3b
        inspect.nemotron-h     model nemotron-h-56b
        inspect.gpt-oss        model gpt-oss-20b
        inspect.mpt            model mpt-7b
        inspect.kimi-linear    model kimi-linear-48b-a3b
        inspect.llama-4        model llama-4-scout
        inspect.path           model profiles/data/examples/tiny-llama.json
        inspect.dgx-h100       cluster dgx-h100
        inspect.gb200-nvl72    cluster gb200-nvl72
        inspect.a3-mega        cluster a3-mega
        inspect.4090           cluster rtx-4090-pcie8
        inspect.gpu.h100       gpu h100-80g
        inspect.gpu.4090       gpu rtx-4090
        inspect.torch-compile  stack torch-compile
        inspect.native         stack native""")
    asked |= table("shardwright export", """
        export.torchtitan          @ --strategy fsdp2 --format torchtitan
        export.torchtitan.tp       @ --tp 2 --pp 2 --global-batch 32 --format torchtitan
        export.torchtitan.json     @ --strategy fsdp2 --format torchtitan --json
        export.torchtitan-main     @ --strategy fsdp2 --format torchtitan-main
        export.torchtitan-0.2      @ --strategy fsdp2 --format torchtitan-0.2
        export.accelerate          @ --strategy fsdp2 --format accelerate
        export.accelerate.yafsdp   @ --strategy yafsdp --ckpt-layers 20 --format accelerate
        export.yafsdp              @ --strategy yafsdp --ckpt-layers 8 --format yafsdp
        export.yafsdp.refused      @ --strategy ddp --format yafsdp
        export.deepspeed           @ --strategy zero3 --format deepspeed
        export.deepspeed.fsdp2     @ --strategy fsdp2 --format deepspeed
        export.deepspeed.offload   @ --strategy zero2 --offload optimizer --format deepspeed
        export.axolotl             @ --strategy fsdp2 --format axolotl
        export.axolotl.qlora       @ --task qlora --format axolotl
        export.llama-factory       @ --strategy fsdp2 --format llama-factory
        export.llama-factory.lora  @ --task lora --format llama-factory
        export.unsloth             @ --strategy fsdp2 --format unsloth
        export.torchtune           @ --strategy fsdp2 --format torchtune
        export.megatron-lm         @ --tp 2 --pp 2 --global-batch 32 --stack megatron-core --format megatron-lm
        export.megatron-lm.yafsdp  @ --strategy yafsdp --format megatron-lm
        export.megatron-bridge     @ --tp 2 --pp 2 --global-batch 32 --stack megatron-core --format megatron-bridge
        export.megatron-fp8        @ --tp 2 --precision fp8 --stack megatron-core --format megatron-bridge""")
    for name, file, plan in [("torchtitan-0.2", "a.toml", "--strategy fsdp2"), ("accelerate", "a.yaml", "--strategy fsdp2"),
                             ("axolotl", "a.yaml", "--strategy fsdp2"), ("llama-factory", "a.yaml", "--strategy fsdp2"),
                             ("torchtune", "a.yaml", "--strategy fsdp2"), ("deepspeed", "a.json", "--strategy zero3"),
                             ("megatron-lm", "a.sh", "--tp 2 --pp 2 --global-batch 32 --stack megatron-core")]:
        asked |= table(f"shardwright export --format {name} --out {file} {plan}", f"import.{name} @ >/dev/null 2>&1; shardwright "
                       f"import-config {file} @ --seq-len 8k --micro-batch 1")
    asked |= table("shardwright validate", """
        validate.usual
        validate.parallel   --ledger profiles/data/published/parallel.csv
        validate.strangers  --ledger profiles/data/published/strangers.csv --rows
        validate.lora       --ledger profiles/data/published/strangers_lora.csv --rows
        validate.runs       --ledger profiles/data/published/strangers.csv --whole-runs | sed -n '/^training  /,$p'""")
    out_of_memory = ("CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 79.11 GiB of which 2.60 GiB "
                     "is free. Of the allocated memory 72.10 GiB is allocated by PyTorch, and 1.20 GiB is reserved by PyTorch "
                     "but unallocated.")
    asked |= table("", f"""
        plan          shardwright tune @ --strategy fsdp2 --threads 1 --out plan.json >/dev/null; shardwright inspect plan plan.json
        plan.changed  shardwright tune @ --stack native --threads 1 --out p.json >/dev/null; shardwright predict --plan p.json --gpus 32
        fix           shardwright export @ --format accelerate --out a.yaml 2>/dev/null; shardwright import-config a.yaml @ --micro-batch 16 --fix
        memory        echo '{out_of_memory}' >oom.log; shardwright import-memory oom.log @ --micro-batch 4 --strategy fsdp2
        anchor        shardwright anchor @ --strategy fsdp2 --step-time 1.1
        run.settings  shardwright run --model profiles/data/examples/tiny-llama.json --data synthetic --device host --threads 1 --show-settings
        kit           shardwright kit @ --strategy fsdp2 --out kit; cat kit/job.sbatch kit/env.sh kit/skypilot.yaml""")
    asked |= table("shardwright predict", """
        error.no-model           --cluster dgx-h100
        error.no-cluster         --model llama-3-8b
        error.model              --model llama-3-9b --cluster dgx-h100
        error.cluster            --model llama-3-8b --cluster dgx-h1000
        error.flag               @ --tpp 2
        error.strategy           @ --strategy fsdp3
        error.strategy.twice     @ --strategy fsdp2,fsdp2
        error.strategy.single    @ --strategy single
        error.stack              @ --stack megatron
        error.gpus               --model llama-3-8b --cluster dgx-h100 --gpus 0
        error.gpus.word          --model llama-3-8b --cluster dgx-h100 --gpus many
        error.tp                 @ --tp 3
        error.tp.tokens          @ --tp 16 --seq-len 2050
        error.pp                 @ --pp 4 --virtual-stages 20
        error.pp.schedule        @ --pp 2 --pp-schedule 1f2b
        error.pp.layout          @ --pp 2 --pp-layout Ett
        error.cp                 @ --cp 3
        error.ep                 @ --ep 2
        error.ep.divides         --model mixtral-8x7b --cluster dgx-h100 --gpus 16 --ep 3
        error.batch              @ --global-batch 17
        error.batch.twice        @ --global-batch 32 --grad-accum 4
        error.ckpt               @ --ckpt-layers 99
        error.recompute          @ --recompute everything
        error.dtype              @ --param-dtype fp64
        error.precision          @ --precision fp9
        error.recipe             @ --fp8-recipe block
        error.quantize           @ --quantize nf4
        error.task               @ --task dpo
        error.task.lora          @ --task sft --lora 8
        error.offload            @ --offload everything
        error.offload.layers     @ --offload activations:99
        error.tokens             @ --tokens lots
        error.price              @ --price dgx-h100=2
        error.price.name         @ --tokens 1T --price dgx=2
        error.set                @ --set gpu.speed=2
        error.set.form           @ --set gpu
        error.jitter             @ --jitter 2
        error.length             @ --seq-len 1G
        error.trace              @ --trace nowhere/trace.json
        error.plan               --plan missing.json""")
    return asked | table("", """
        error.verb              shardwright predcit
        error.plan.cut          echo '{"schema": "shardwright.plan/1.0"' >plan.json; shardwright predict --plan plan.json
        error.config.key        echo '{"model_type": "llama", "hidden_act": "sine"}' >m.json; shardwright inspect model m.json
        error.config.type       echo '{"model_type": "elephant"}' >m.json; shardwright inspect model m.json
        error.allow             shardwright tune @ --allow fp7
        error.for               shardwright tune @ --for pytorch
        error.objective         shardwright tune @ --objective fun
        error.headroom          shardwright tune @ --headroom 200%
        error.size.tokens       shardwright size --model llama-3-8b
        error.size.deadline     shardwright size --model llama-3-8b --tokens 1T --deadline soon
        error.size.clusters     shardwright size --model llama-3-8b --tokens 1T --clusters dgx-h100,dgx-h100
        error.inspect           shardwright inspect modell
        error.inspect.name      shardwright inspect gpu h100
        error.export            shardwright export @ --format pytorch
        error.validate          shardwright validate --ledger missing.csv
        error.validate.columns  echo 'id,gpus' >l.csv; shardwright validate --ledger l.csv
        error.import            echo 'a: b' >a.yaml; shardwright import-config a.yaml @
        error.run.ranks         shardwright run --model profiles/data/examples/tiny-llama.json --data synthetic --ranks 2 --tp 4 --device host
        error.run.experts       shardwright run --model mixtral-8x7b --data synthetic --device host
        error.calibrate         shardwright calibrate --trace missing.json --out p.json
        error.compare           shardwright compare missing.json missing.json
        error.completion        shardwright completion tcsh
        error.memory            echo fine >a.log; shardwright import-memory a.log @""")


GROUPS = {"ledgers": ledgers, "predictions": predictions, "tunings": tunings, "sizings": sizings, "traces": traces,
          "losses": losses, "texts": texts}
