// SPDX-License-Identifier: Apache-2.0
// Shapes of Megatron-LM's and Megatron-Bridge's files, each with what Megatron makes of it. Every
// one of them was once read as something else, or refused.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "cli/config/setting.h"
#include "tests/cli/imported_answer.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

fs::path bridge() {
  const fs::path root = temp_folder() / "tree" / "bridge" / "recipes";
  fs::create_directories(root / "llama");
  std::ofstream(root / "common.py") << R"py(
SEQUENCE_LENGTH_4K: int = 4096

def _peft_common():
    opt_cfg, scheduler_cfg = fused_adam(lr=1e-4)
    cfg = ConfigContainer(
        train=TrainingConfig(global_batch_size=128, micro_batch_size=1),
        optimizer=opt_cfg,
        ddp=DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True),
        dataset=default_dataset(seq_length=2048),
        mixed_precision="bf16_mixed",
        peft=LoRA(dim=32, alpha=32),
    )
    return cfg

def fused_adam(lr):
    return OptimizerConfig(optimizer="adam", lr=lr), SchedulerConfig()

def adapters(scheme, **kwargs):
    if scheme is None:
        return None
    if isinstance(scheme, str) and scheme.lower() == "lora":
        return LoRA(**kwargs)
    raise ValueError(scheme)
)py";
  std::ofstream(root / "llama" / "llama3.py") << R"py(
from bridge.recipes.common import _peft_common, adapters, SEQUENCE_LENGTH_4K

def small_peft_1gpu_h100_config(scheme="lora"):
    cfg = _peft_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").get_model_config()
    cfg.model.tensor_model_parallel_size = 1
    cfg.model.seq_length = SEQUENCE_LENGTH_4K
    cfg.dataset.seq_length = SEQUENCE_LENGTH_4K
    cfg.peft = adapters(scheme, dim=8)
    cfg.train.global_batch_size = 4 * 2
    cfg.model.recompute_modules = None
    return cfg

def large_peft_2gpu_h100_config():
    cfg = small_peft_1gpu_h100_config()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    return cfg

def whole_2gpu_h100_config():
    cfg = small_peft_1gpu_h100_config(scheme=None)
    cfg.optimizer.lr = some_function()
    return cfg
)py";
  return root / "llama" / "llama3.py";
}

TEST(ImportMegatron, AdaptersOfMegatronBridgeAreLora) {
  const std::string file = bridge().string();
  const json small = imported(file + ":small_peft_1gpu_h100_config", {});
  EXPECT_EQ(small.at("plan").at("lora"), 8);
  EXPECT_EQ(small.at("plan").at("gpus"), 1);  // by its name
  EXPECT_EQ(small.at("plan").at("seq_len"), 4096);
  EXPECT_EQ(small.at("plan").at("grad_accum"), 8);
  EXPECT_EQ(small.at("model"), "meta-llama/Meta-Llama-3-8B");
  EXPECT_TRUE(small.at("prediction").at("memory").at("fits"));
  const json large = imported(file + ":large_peft_2gpu_h100_config", {});
  expect_has(large.at("plan"), R"({"lora": 8, "tp": 2, "seq_len": 4096})"_json);
  std::ofstream(bridge().parent_path() / "names.py")
      << "from bridge.recipes.llama.llama3 import large_peft_2gpu_h100_config as large\n";
  const json named =
      imported((bridge().parent_path() / "names.py").string() + ":large", {"--gpus", "2"});
  EXPECT_EQ(named.at("plan"), large.at("plan"));
  const json whole = imported(file + ":whole_2gpu_h100_config", {});
  EXPECT_EQ(whole.at("plan").value("lora", 0), 0);
}

TEST(ImportMegatron, ARecipeWhoseBaseIsNotBesideItSaysSo) {
  const std::string file = written("alone.py", R"py(
from megatron.bridge.recipes.common import _peft_common

def mine():
    cfg = _peft_common()
    cfg.model.tensor_model_parallel_size = 2
    return cfg
)py");
  const json answer = imported(file, {"--model", "llama-3.1-8b"});
  EXPECT_EQ(answer.at("plan").at("lora"), 32);
  EXPECT_EQ(answer.at("plan").at("seq_len"), 2048);
  EXPECT_THAT(assumed(answer), HasSubstr("begins with _peft_common"));
}

TEST(ImportMegatron, MegatronsOwnTestsKeepArgumentsInYaml) {
  if (!reads(SettingsLanguage::kYaml)) GTEST_SKIP();
  const json answer = imported(written("model_config.yaml", R"(
ENV_VARS:
  NCCL_ALGO: Ring
BASE_MODEL_ARGS: &BASE
  --seq-length: 1024
  --micro-batch-size: 2
MODEL_ARGS:
  <<: *BASE
  --num-layers: 12
  --micro-batch-size: 4
  --global-batch-size: 32
  --tensor-model-parallel-size: 2
  --use-distributed-optimizer: true
TEST_TYPE: regular
)"),
                               {"--model", "llama-3.2-1b"});
  expect_has(answer, R"({"format": "megatron", "plan": {"tp": 2, "micro_batch": 4}})"_json);
  EXPECT_EQ(answer.at("plan").at("seq_len"), 1024);  // of what is merged in
  EXPECT_EQ(answer.at("plan").at("strategy"), "distributed-optimizer");
}

TEST(ImportMegatron, MegatronReducesBesideBackwardOnlyWhereItIsSaid) {
  const std::string flags =
      "--tensor-model-parallel-size 4 --micro-batch-size 1 --global-batch-size 64 --seq-length "
      "4096 --bf16 --use-distributed-optimizer ";
  const Words where{"--model", "llama-3-70b", "--gpus", "64"};
  const auto step = [](const json& answer) {
    return answer.at("prediction").at("iteration_time_s").get<double>();
  };
  const json off = imported(written("off.sh", flags), where);
  const json on =
      imported(written("on.sh", flags + "--overlap-grad-reduce --overlap-param-gather"), where);
  EXPECT_THAT(assumed(off), HasSubstr("overlap_grad_reduce is not said: off"));
  EXPECT_THAT(assumed(on), Not(HasSubstr("overlap_grad_reduce")));
  EXPECT_GT(step(off), 1.05 * step(on));
  // A recipe of Megatron-Bridge whose base is not at hand has what that one says.
  const std::string recipe =
      "def mine():\n  cfg = elsewhere()\n  cfg.model."
      "tensor_model_parallel_size = 4\n  cfg.train.micro_batch_size = 1\n  "
      "cfg.train.global_batch_size = 64\n";
  EXPECT_TRUE(imported(written("base.py", recipe), where).at("set").empty());
  const std::string says = recipe + "  cfg.ddp.overlap_grad_reduce = False\n";
  EXPECT_THAT(imported(written("says.py", says), where).at("set").dump(),
              HasSubstr("overlap_grad_reduce=false"));
}

TEST(ImportMegatron, MegatronFsdpShardsWhatItsStrategySays) {
  const std::string flags =
      "--tensor-model-parallel-size 2 --micro-batch-size 1 --seq-length 4096 --use-megatron-fsdp ";
  const auto strategy = [&](const std::string& name, const std::string& more) {
    const json answer = imported(written(name, flags + more), {"--model", "llama-3.1-8b"});
    return answer.at("plan").at("strategy").get<std::string>();
  };
  EXPECT_EQ(strategy("none.sh", ""), "ddp");
  EXPECT_EQ(strategy("optim.sh", "--data-parallel-sharding-strategy optim"),
            "distributed-optimizer");
  EXPECT_EQ(strategy("all.sh", "--data-parallel-sharding-strategy optim_grads_params"),
            "megatron-fsdp");
}

TEST(ImportMegatron, NarrowerStatesOfMegatronAreTakenOrSaid) {
  const std::string flags =
      "--tensor-model-parallel-size 2 --micro-batch-size 1 --seq-length 4096 ";
  const Words where{"--model", "llama-3.1-8b"};
  const json both =
      imported(written("both.sh", flags + "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"), where);
  EXPECT_EQ(both.at("plan").at("moment_dtype"), "bf16");
  const json others =
      imported(written("others.sh", flags + "--exp-avg-dtype fp8 --main-grads-dtype "
                                            "bf16 --main-params-dtype fp16"),
               where);
  EXPECT_EQ(others.at("plan").at("moment_dtype"), "fp32");
  EXPECT_TRUE(leaves(others, "exp_avg_dtype"));
  EXPECT_TRUE(leaves(others, "main_grads_dtype"));
  EXPECT_TRUE(leaves(others, "main_params_dtype"));
  // Once passed over: "main_" of Accelerate's main_process_ip.
  const json fsdp =
      imported(written("mfsdp.sh", flags + "--megatron-fsdp-main-grads-dtype bf16"), where);
  EXPECT_TRUE(leaves(fsdp, "megatron_fsdp_main_grads_dtype"));
}

TEST(ImportMegatron, ConditionsOfAScriptAreDecidedOrKeptApart) {
  const std::string script = R"sh(
DTYPE="fp8"
NNODES=${SLURM_NNODES:-"2"}
if [[ "$DTYPE" == "fp8" ]]; then
  ARGS+=(
    "--fp8-format hybrid"
    "--fp8-recipe tensorwise"
  )
elif [ $DTYPE = fp16 ]; then ARGS+=(--fp16); fi
if [ $NNODES -gt 4 ] && [ "$ELSEWHERE" != x ]; then
  TP=8
else
  TP=2
fi
if [ -z "$PP" ]; then PP=4; fi
[ "$DTYPE" = bf16 ] && SEQ="--seq-length 1024"
case $MODEL in
  large) SIZE="--recompute-granularity full" ;;
esac
if [ -n "$CP" ]; then ARGS+=(--context-parallel-size 2); fi
torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py --tensor-model-parallel-size $TP \
  --pipeline-model-parallel-size $PP --micro-batch-size 1 --seq-length 4096 ${ARGS[@]}
)sh";
  const json answer = imported(written("conditions.sh", script), {"--model", "llama-3.1-8b"});
  const json& plan = answer.at("plan");
  EXPECT_EQ(plan.at("precision"), "fp8");
  EXPECT_EQ(plan.count("fp8_recipe"), 0U) << "tensorwise is usual";
  expect_has(plan, R"({"gpus": 16, "tp": 2, "pp": 4, "seq_len": 4096, "cp": 1})"_json);
  EXPECT_NE(plan.at("recompute"), "full");
  EXPECT_TRUE(leaves(answer, "recompute_granularity"));
  EXPECT_TRUE(leaves(answer, "context_parallel_size"));
  // A case of a constant is decided.
  const std::string cases =
      "SIZE=\"8B\"\ncase \"${SIZE}\" in\n  small|medium) TP=1 ;;\n  \"8B\" | 9B)\n    TP=4\n    "
      ";;\n"
      "  *) TP=8 ;;\nesac\n--tensor-model-parallel-size $TP --micro-batch-size 1 --bf16\n";
  EXPECT_EQ(imported(written("case.sh", cases), {"--model", "llama-3.1-8b"}).at("plan").at("tp"),
            4);
  // A quote without an end is told in one line, by its beginning.
  const ProgramResult open =
      import_of(written("open.sh", "--micro-batch-size 1 --tensor-model-parallel-size '2\n" +
                                       std::string(200, 'x') + "\n"),
                {"--model", "llama-3.1-8b"});
  EXPECT_EQ(open.exit_code, 3);
  EXPECT_EQ(std::count(open.err.begin(), open.err.end(), '\n'), 1) << open.err;
  EXPECT_LT(open.err.size(), 400U);
  // What depends on a variable that nobody can tell is not guessed.
  expect_error(import_of(written("either.sh",
                                 "TP=1\nif [ $HOST = big ]; then TP=8; fi\n"
                                 "--tensor-model-parallel-size $TP --micro-batch-size 1\n"),
                         {"--model", "llama-3.1-8b"}),
               3, "tensor_model_parallel_size is '$TP'");
}

TEST(ImportMegatron, ReadsBackWhatIsExported) {
  struct Case {
    const char *model, *knobs;
  };
  const std::vector<Case> cases{
      {"llama-3-70b", "--gpus 64 --tp 4 --pp 4 --virtual-stages 2 --global-batch 64"},
      {"llama-3-70b",
       "--gpus 64 --tp 8 --cp 2 --global-batch 64 --precision fp8 --fp8-recipe block"},
      {"llama-3-8b", "--gpus 16 --tp 2 --grad-accum 4 --reduce-dtype bf16 --moment-dtype bf16"},
      {"llama-3-8b", "--gpus 16 --tp 2 --precision fp16 --offload optimizer"},
      {"llama-3-8b", "--gpus 16 --strategy megatron-fsdp --ckpt-layers all"},
      {"qwen3-30b-a3b",
       "--gpus 64 --tp 2 --ep 8 --etp 1 --ep-overlap on --expert-capacity 1.5 --micro-batch 2"}};
  for (const Case& one : cases) {
    Words plan{"--model", one.model, "--cluster", "dgx-h100", "--stack", "megatron-core"};
    const std::string knobs = one.knobs;
    if (knobs.find("--strategy") == knobs.npos) {
      plan.insert(plan.end(), {"--strategy", "distributed-optimizer"});
    }
    std::istringstream words(knobs);
    for (std::string word; words >> word;) plan.push_back(word);
    const std::string gpus = *(std::find(plan.begin(), plan.end(), "--gpus") + 1);
    Words predict = joined({SHARDWRIGHT_BINARY, "predict", "--json"}, plan);
    const ProgramResult predicted = run_program(predict, {"LC_ALL=C"});
    ASSERT_EQ(predicted.exit_code, 0) << knobs << predicted.err;
    for (const auto& [format, name] :
         {std::pair{"megatron-lm", "out.sh"}, std::pair{"megatron-bridge", "out.py"}}) {
      const std::string file = written(name, "");
      Words write = joined({SHARDWRIGHT_BINARY, "export", "--format", format, "--out", file}, plan);
      ASSERT_EQ(run_program(write, {"LC_ALL=C"}).exit_code, 0) << knobs << " " << format;
      const json answer = imported(file, {"--model", one.model, "--gpus", gpus});
      const json wanted = json::parse(predicted.out).at("inputs").at("plan");
      for (const auto& [knob, value] : answer.at("plan").items()) {
        // Said, where the plan leaves it to the framework.
        if ((knob == "cp_comm" || knob == "dispatcher") && !wanted.contains(knob)) continue;
        EXPECT_EQ(value, wanted.value(knob, json())) << knob << " of " << format << ": " << knobs;
      }
    }
  }
}

TEST(ImportMegatron, DefaultsOfItsArgumentsAreTakenAndSaid) {
  const std::string flags =
      "--tensor-model-parallel-size 2 --micro-batch-size 1 --seq-length 4096 ";
  const auto plan = [&](const std::string& name, const std::string& more, const char* model) {
    return imported(written(name, flags + more), {"--model", model, "--gpus", "16"}).at("plan");
  };
  const json none = imported(written("none.sh", flags), {"--model", "llama-3.1-8b"});
  EXPECT_EQ(none.at("plan").at("param_dtype"), "fp32");
  EXPECT_THAT(assumed(none), HasSubstr("neither bf16 nor fp16 is given: fp32"));
  EXPECT_EQ(plan("bf16.sh", "--bf16", "llama-3.1-8b").at("param_dtype"), "bf16");
  EXPECT_EQ(plan("bf16.sh", "--bf16", "llama-3.1-8b").at("reduce_dtype"), "fp32");
  EXPECT_EQ(plan("fp16.sh", "--fp16", "llama-3.1-8b").at("reduce_dtype"), "bf16");  // 16 bits
  EXPECT_EQ(plan("fp8.sh", "--bf16 --fp8-format hybrid", "llama-3.1-8b").at("fp8_recipe"),
            "delayed");
  EXPECT_EQ(
      plan("ep.sh", "--bf16 --sequence-parallel --expert-model-parallel-size 8", "qwen3-30b-a3b")
          .at("dispatcher"),
      "allgather");
  const json chunks =
      imported(written("chunks.sh", flags + "--bf16 --pipeline-model-parallel-size 4 "
                                            "--num-layers-per-virtual-pipeline-stage 4"),
               {"--model", "llama-3.1-8b"});
  EXPECT_TRUE(leaves(chunks, "num_layers_per_virtual_pipeline_stage"));
}

TEST(ImportMegatron, EncodersAndReinforcementAreRefused) {
  expect_error(import_of(written("t5.sh",
                                 "--tensor-model-parallel-size 2 --encoder-seq-length 512 "
                                 "--decoder-seq-length 128 --micro-batch-size 4"),
                         {"--model", "llama-3.2-1b"}),
               3, "decoder_seq_length is '128'");
  expect_error(import_of(written("rl.sh",
                                 "--tensor-model-parallel-size 2 --micro-batch-size 1 "
                                 "--perform-rl-step --grpo-kl-beta 0.0"),
                         {"--model", "llama-3.2-1b"}),
               3, "perform_rl_step is 'true'");
}

}  // namespace
}  // namespace shardwright::cli
