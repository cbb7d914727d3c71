// SPDX-License-Identifier: Apache-2.0
#include "cli/run/options.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "cli/build_info.h"
#include "cli/machine/host_profile.h"
#ifdef SHARDWRIGHT_HAS_CUDA
#include "exec/cuda/attention.h"
#endif
#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/executed_plan.h"
#include "sim/core/hf/config.h"
#include "sim/core/plan_knobs.h"

namespace shardwright::cli {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostSteps = std::int64_t{1} << 40;
constexpr RealRange kNotNegative{0, 1e300};
constexpr RealRange kShare{0, 1};

std::optional<std::string> variable(
    const std::vector<std::pair<std::string, std::string>>& environment, const std::string& name) {
  for (const auto& [known, value] : environment) {
    if (known == name) return value;
  }
  return std::nullopt;
}

/// Which attention runs, "auto" or one of this build's.
std::string attention_kernel(const RunSettings& settings, DeviceKind device, bool deterministic) {
  const std::string& wish = settings.text("attention-kernel");
  if (device == DeviceKind::kHost && wish != "auto") {
    settings.fail("attention-kernel", "auto on the host, which has only one");
  }
#ifdef SHARDWRIGHT_HAS_CUDA
  const exec::cuda::AttentionSet all;
  const auto names = all.names();
  if (wish != "auto" && std::find(names.begin(), names.end(), wish) == names.end()) {
    settings.fail("attention-kernel", fmt::format("auto or one of {}", fmt::join(names, ", ")));
  }
  if (deterministic && wish != "auto" && !all.repeats(wish)) {
    settings.fail("attention-kernel",
                  "auto or one that repeats to the bit, because the plan is deterministic");
  }
#else
  static_cast<void>(deterministic);
#endif
  return wish;
}

/// Whether the algorithms of products are timed before the first step. What is timed may come out
/// another way the next time.
bool times_products(const RunSettings& settings, DeviceKind device, bool deterministic) {
  const std::string word = settings.word("products", {"auto", "timed", "first"});
  if (device == DeviceKind::kHost) {
    if (word == "timed") settings.fail("products", "auto on the host, which has only one way");
    return false;
  }
  return word == "timed" || (word == "auto" && !deterministic);
}

/// What is said of the length of a run besides its steps is said once; run files repeat the steps.
void decide_tokens(RunSettings& settings, const Plan& plan) {
  for (const char* budget : {"epochs", "tokens"}) {
    if (settings.text(budget).empty()) continue;
    const char* other = settings.at("steps").origin == "flag" ? "steps"
                        : budget == std::string_view("epochs") && !settings.text("tokens").empty()
                            ? "tokens"
                            : nullptr;
    if (other != nullptr) settings.fail(budget, fmt::format("left out beside --{}", other));
  }
  if (settings.text("tokens").empty()) return;
  const std::int64_t of_step = sequences_of_step(plan) * plan.seq_len;
  const std::int64_t most = kMostSteps * std::min(of_step, std::int64_t{1} << 20);
  const std::int64_t tokens = settings.count("tokens", {1, most});
  settings.decide("steps", fmt::format("{}", (tokens + of_step - 1) / of_step),
                  fmt::format("--tokens {}", settings.text("tokens")));
  settings.decide("tokens", "", "--steps");
}

exec::TrainOptions train_options(const RunSettings& settings) {
  exec::TrainOptions train;
  // How many steps epochs are is known once the data are (decide_epochs).
  const bool open = !settings.text("epochs").empty();
  train.lr.total_steps = open ? kMostSteps : settings.count("steps", {1, kMostSteps});
  train.lr.peak = settings.number("lr", kNotNegative);
  train.lr.shape =
      *exec::lr_shape_from(settings.word("schedule", {"cosine", "linear", "wsd", "constant"}));
  train.lr.warmup_steps = settings.count("warmup", {0, train.lr.total_steps});
  train.lr.final_fraction = settings.number("final-lr-fraction", kShare);
  train.lr.decay_fraction = settings.number("decay-fraction", kShare);
  exec::check_lr_schedule(train.lr);
  train.adamw.weight_decay = settings.number("weight-decay", kNotNegative);
  train.adamw.beta1 = settings.number("beta1", {0, 0.999999});
  train.adamw.beta2 = settings.number("beta2", {0, 0.999999});
  train.adamw.eps = settings.number("eps", {1e-30, 1});  // 0: nothing over nothing is no number
  train.clip.max_norm = settings.number("clip", kNotNegative);
  train.clip.skip_above = settings.number("skip-above", kNotNegative);
  train.max_loss = settings.number("max-loss", kNotNegative);
  train.bad_step = settings.word("on-bad-step", {"stop", "skip"}) == "stop"
                       ? exec::BadStepPolicy::kStop
                       : exec::BadStepPolicy::kSkip;
  train.seed = static_cast<std::uint64_t>(settings.count("seed", {0, std::int64_t{1} << 62}));
  train.eval_every = settings.count("eval-every", {0, kMostSteps});
  train.eval_sequences = settings.count("eval-sequences", {0, kMostSteps});
  constexpr double kSaveInterval_s = 15 * 60;
  if (settings.text("save-every") == "auto") {
    train.save_interval_s = kSaveInterval_s;
  } else {
    train.save_every = settings.count("save-every", {0, kMostSteps});
  }
  train.event_files = settings.word("tensorboard", {"off", "on"}) == "on";
  train.keep = settings.count("keep", {0, kMostSteps});
  constexpr double kMostPatience_s = 30.0 * 24 * 3600;
  train.save_patience_s = settings.number("save-patience", {0, kMostPatience_s});
  train.saves = settings.word("save", {"auto", "none"}) != "none";
  train.trace_step = settings.count("trace-step", {0, train.lr.total_steps});
  train.trace_steps = settings.count("trace-steps", {1, 1000});
  train.folder = settings.text("out");
  train.tool_version = build_info().version;
  return train;
}

std::string required(const RunSettings& settings, const std::string& key,
                     const std::string& otherwise, const char* example) {
  const std::string& value = settings.text(key).empty() ? otherwise : settings.text(key);
  if (value.empty()) {
    throw Error(fmt::format("--{} is missing: give {}", key, example), ExitCode::kUsage);
  }
  return value;
}

/// The model that is given, or the plan's; its own configuration goes with a plan.
void choose_model(const RunSettings& settings, const PlanDocument& document, RunOptions& options) {
  const fs::path models = profiles::data_dir() / "models";
  // A run file repeats what the plan beside it says; a flag means the file as it is now.
  const RunSetting& given = settings.at("model");
  const bool plans = !given.given || (given.name != "--model" && given.value == document.model);
  if (plans && !document.model_config.empty()) {
    options.config = document.model_config;
    options.model = parse_hf_config(options.config, settings.text("plan") + ": model_config",
                                    model_name_of(options.model_name));
    return;
  }
  options.model = load_model(models, options.model_name);
  options.config = read_model_config(models, options.model_name);
}

/// NCCL adds up in an order of its own; everything else in that of the plan.
void check_sums(const RunSettings& settings, Transport transport, std::int64_t ranks) {
  const bool of_library = transport == Transport::kNccl && ranks > 1;
  const std::string asked = settings.word("sums", {"auto", "exact", "library"});
  if (asked == "exact" && of_library)
    settings.fail("sums", "auto or library, since NCCL adds up in an order of its own");
  if (asked == "library" && !of_library)
    settings.fail("sums", "auto or exact, since these ranks add up in the order of the plan");
}

exec::DocumentEnds document_ends(const RunSettings& settings, const std::string& config) {
  exec::DocumentEnds ends;
  ends.apart = settings.word("documents", {"joined", "apart"}) == "apart";
  nlohmann::json eos = parse_json(config).value("eos_token_id", nlohmann::json());
  if (eos.is_array() && !eos.empty()) eos = nlohmann::json(eos.front());
  if (ends.apart && eos.is_number_integer()) ends.token = eos.get<std::int64_t>();
  return ends;
}

/// The cluster that virtual clocks mean, which this run must be able to have; else empty.
std::string virtual_network(const RunSettings& settings, bool is_virtual,
                            const RunOptions& options) {
  const std::string& network = settings.text("network");
  if (!is_virtual) {
    if (!network.empty()) settings.fail("network", "none without --clock virtual");
    return "";
  }
  if (options.device != DeviceKind::kHost)
    settings.fail("clock", "wall on cuda, whose streams have clocks of their own");
  if (options.transport != Transport::kLocal)
    settings.fail("clock", "wall where ranks are processes; virtual needs --communicator local");
  if (options.streams != exec::StreamMode::kInline)
    settings.fail("clock", "wall unless streams are inline");
  std::string chosen = network.empty() ? std::string(kVirtualCluster) : network;
  if (profiles::load_cluster(chosen).cluster.devices_per_node > 0)
    settings.fail("network", "a cluster whose ranks have a device each, such as cpu-cores");
  return chosen;
}

}  // namespace

profiles::ClusterFile cluster_file_of(const RunOptions& options) {
  return options.cluster_file.empty()
             ? profiles::load_cluster(options.cluster)
             : profiles::parse_cluster(options.cluster_file, "the plan's cluster_file");
}

std::int64_t sequences_of_step(const Plan& plan) {
  return plan.gpus / plan.parallel.replica() * plan.micro_batch * plan.grad_accum;
}

void decide_epochs(RunSettings& settings, RunOptions& options, std::int64_t sequences) {
  if (settings.text("epochs").empty()) return;
  const double epochs = settings.number("epochs", {1e-9, 1e9});
  const double steps = std::ceil(epochs * static_cast<double>(sequences) /
                                 static_cast<double>(sequences_of_step(options.plan)));
  if (steps > static_cast<double>(kMostSteps)) settings.fail("epochs", "fewer of these data");
  settings.decide("steps", fmt::format("{:.0f}", steps),
                  fmt::format("--epochs {}", settings.text("epochs")));
  settings.decide("epochs", "", "--steps");
  options.train.lr = train_options(settings).lr;
  settings.count("trace-step", {0, options.train.lr.total_steps});
}

RunOptions run_options(RunSettings& settings) {
  RunOptions options;
  const auto environment = process_environment();
  options.launch = exec::launch_environment(
      [&](const std::string& name) { return variable(environment, name); });
  PlanDocument document;
  const std::string& plan_file = settings.text("plan");
  if (!plan_file.empty()) document = read_plan(plan_file);
  options.model_name =
      required(settings, "model", document.model, "a Hugging Face config.json or a shipped name");
  settings.decide("model", options.model_name, plan_file);
  choose_model(settings, document, options);
  if (settings.word("dropout", {"config", "none"}) == "none") options.model.dropout.clear();
  if (!options.model.dropout.empty()) {
    throw Error(
        fmt::format("model '{}': {}, but the executor drops nothing out, expected 0 or "
                    "--dropout none",
                    options.model.name, options.model.dropout));
  }
  ExecutionOffer offer = execution_offer();
  const std::string connects = settings.word("communicator", {"auto", "local", "nccl", "mpi"});
  std::string on = settings.word("device", {"auto", "host", "cuda"});
  const bool is_virtual = settings.word("clock", {"wall", "virtual"}) == "virtual";
  if (on == "auto" && (connects == "mpi" || is_virtual)) on = "host";
  const DeviceChoice device = choose_device(on, offer);
  options.device = device.kind;
  options.plan = run_plan(settings, document, options.model, options.launch, options.device);
  if (options.plan.stack != "native") {
    options.notes.push_back(
        fmt::format("the plan was made for the framework {}; run executes it with the native one",
                    options.plan.stack));
    options.plan.stack = "native";
  }
  options.cluster_given = !settings.text("cluster").empty();
  options.cluster = options.cluster_given ? settings.text("cluster") : document.cluster;
  if (!options.cluster_given) options.cluster_file = document.cluster_file;
  if (options.cluster == document.cluster) options.overrides = document.overrides;

  options.transport =
      choose_transport(connects, options.device, options.launch, options.plan.gpus, offer);
  check_sums(settings, options.transport, options.plan.gpus);
  settings.decide("device", std::string(name_of(options.device)), device.why);
  settings.decide("communicator", std::string(name_of(options.transport)),
                  name_of(options.launch.launcher));
  options.rendezvous = settings.text("rendezvous");
  if (options.rendezvous != "auto" && !options.rendezvous.starts_with("tcp://") &&
      !options.rendezvous.starts_with("file:///"))
    settings.fail("rendezvous", "auto, tcp://HOST:PORT or file:///PATH");
  constexpr double kMostRankTimeout = 86400 * 30;
  options.rank_timeout_s = settings.number("rank-timeout", {1, kMostRankTimeout});
  options.has_processes = settings.word("rank-processes", {"on", "off"}) == "on";
  constexpr std::int64_t kMostSms = 1024;
  if (settings.text("collective-sms") != "auto") {
    options.collective_sms = static_cast<int>(settings.count("collective-sms", {1, kMostSms}));
  }
  options.attention_kernel = attention_kernel(settings, options.device, options.plan.deterministic);
  options.times_products = times_products(settings, options.device, options.plan.deterministic);
  if (options.times_products && !options.cluster.empty()) {
    options.product_choices = cluster_file_of(options).product_choices;
  }
  check_ranks_here(offer, {options.device, options.transport, options.launch, is_virtual},
                   options.plan);
  if (options.device == DeviceKind::kCuda) options.gpus = std::move(offer.gpus);
  options.streams =
      exec::stream_mode_from(settings.word("streams", {"threads", "inline", "shuffled"}));
  options.network = virtual_network(settings, is_virtual, options);
  options.binds_cpus = settings.word("cpu-binding", {"auto", "none"}) == "auto";
  options.threads = static_cast<int>(settings.count("threads", {0, 4096}));
  if (options.threads == 0) {
    const auto cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const int sharers = std::max(1, static_cast<int>(options.launch.local_ranks));
    options.threads = std::max(1, cores / sharers);
  }

  decide_tokens(settings, options.plan);
  options.train = train_options(settings);
  options.train.config = options.config;
  options.until_allocation = settings.word("until", {"end", "allocation"}) == "allocation";
  options.data.train = options.until_allocation
                           ? settings.text("data")
                           : required(settings, "data", "", "a file, or synthetic");
  options.data.eval = settings.text("eval-data");
  options.data.format =
      exec::data_format_from(settings.word("format", {"auto", "text", "bin", "tokens", "sft"}));
  options.data.held_out_fraction = settings.number("hold-out", {0, 0.9});
  options.data.holds_out = options.data.held_out_fraction > 0;
  options.data.ends = document_ends(settings, options.config);
  options.data.checks = options.launch.rank == 0;
  options.data.seq_len = options.plan.seq_len;
  options.data.vocab = options.model.vocab;
  options.data.seed = options.train.seed;
  options.resume = settings.text("resume");
  options.weights = settings.text("weights");
  options.out = settings.text("out");
  options.overwrite = settings.word("overwrite", {"no", "yes"}) == "yes";
  options.log_every = settings.count("log-every", {1, kMostSteps});
  if (options.out.empty()) settings.fail("out", "the path of a folder");
  options.marks_ranges = settings.word("nvtx", {"off", "on"}) == "on";
  options.trace = settings.text("trace");
  return options;
}

namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

/// What the settings say of the plan, by the table that reads flags, too.
GivenKnobs given_knobs(const RunSettings& settings, const Model& model) {
  GivenKnobs knobs;
  for (const PlanKnob& knob : plan_knobs()) {
    const std::string key(knob.name);
    if (knob.read && settings.knows(key) && settings.given(key)) {
      knob.read(knobs, settings.at(key).name, settings.text(key));
    }
  }
  if (knobs.strategies.size() > 1) settings.word("strategy", strategy_names());
  if (knobs.ckpt_layers && !knobs.ckpt_layers->all)
    settings.count("ckpt-layers", {0, model.layers});
  return knobs;
}

/// A run file says how a run began; flags and the environment say what is asked for now.
bool is_of_run_file(const RunSettings& settings, const std::string& key) {
  return settings.given(key) && settings.at(key).name.find(" in ") != std::string::npos;
}

std::int64_t decide_ranks(RunSettings& settings, const Plan& plan, bool from_file,
                          const exec::LaunchEnvironment& launch) {
  // The launcher may start another number than there was.
  const bool was_other =
      is_of_run_file(settings, "ranks") && launch.launcher != exec::Launcher::kNone;
  const bool given = settings.given("ranks") && !was_other;
  const std::int64_t wished = given       ? settings.count("ranks", {1, kMostRanks})
                              : from_file ? plan.gpus
                                          : launch.ranks;
  if (launch.launcher == exec::Launcher::kNone) return wished;
  if (given && wished != launch.ranks) {
    settings.fail("ranks", fmt::format("{}, the number of processes that {} started", launch.ranks,
                                       name_of(launch.launcher)));
  }
  return launch.ranks;
}

/// Keeps the sequences of a step where a launcher starts another number of ranks than the plan, or
/// the run file, was for: an elastic launcher goes on with what is left.
void keep_batch(const RunSettings& settings, std::int64_t before,
                const exec::LaunchEnvironment& launch, Plan& plan) {
  const bool asked = settings.given("grad-accum") && !is_of_run_file(settings, "grad-accum");
  if (launch.launcher == exec::Launcher::kNone || before == plan.gpus || asked) return;
  const std::int64_t replica = plan.parallel.replica();
  const std::int64_t micro_steps = before / replica * plan.grad_accum;
  if (micro_steps * replica % plan.gpus != 0) {
    throw Error(
        fmt::format("{} started {} processes, but a step has {} micro-batches{}; expected a "
                    "number of processes that divides them, or --grad-accum",
                    name_of(launch.launcher), plan.gpus, micro_steps,
                    replica > 1 ? fmt::format(" for {} ranks each", replica) : ""));
  }
  plan.grad_accum = micro_steps * replica / plan.gpus;
}

}  // namespace

Plan run_plan(RunSettings& settings, const PlanDocument& document, const Model& model,
              const exec::LaunchEnvironment& launch, DeviceKind device) {
  const std::string& file = settings.text("plan");
  const bool from_file = !file.empty();
  Plan plan = document.plan;
  if (!from_file) {
    plan.ckpt_layers = 0;
    plan.param_dtype = device == DeviceKind::kCuda ? DType::kBf16 : DType::kFp32;
    // A processor takes minutes for a step of the length that predict and tune take.
    plan.seq_len = std::min(plan.seq_len, model.max_positions);
  }
  const std::int64_t ranks = decide_ranks(settings, plan, from_file, launch);
  const std::int64_t before =
      settings.given("ranks") ? settings.count("ranks", {1, kMostRanks}) : plan.gpus;
  if (plan.shard_group == plan.gpus || plan.shard_group > ranks) plan.shard_group = 0;
  plan.gpus = ranks;
  if (!from_file && ranks == 1) plan.strategy = Strategy::kSingle;

  const GivenKnobs knobs = given_knobs(settings, model);
  if (!knobs.strategies.empty()) plan.strategy = knobs.strategies.front();
  if (!from_file && knobs.parallel.precision == Precision::kFp8) plan.param_dtype = DType::kBf16;
  plan = with_knobs(std::move(plan), knobs, model.layers);
  if (const std::string why = why_not_run(model, plan); !why.empty()) {
    const bool says_the_file = from_file && why_not_run(model, document.plan) == why;
    throw InvalidPlan(says_the_file ? fmt::format("{}: {}", file, why) : why);
  }
  if (from_file || settings.given("ranks")) keep_batch(settings, before, launch, plan);

  const std::string origin = from_file ? file : "default";
  settings.decide("ranks", fmt::format("{}", plan.gpus),
                  launch.launcher == exec::Launcher::kNone ? origin : name_of(launch.launcher));
  for (const PlanKnob& knob : plan_knobs()) {
    const std::string key(knob.name);
    if (!knob.write || !settings.knows(key)) continue;
    // Without fp8 layers multiply in the parameters' type.
    if (key == "precision" && plan.numerics.precision != Precision::kFp8) continue;
    std::string value = knob.write(plan);
    if (!value.empty()) settings.decide(key, std::move(value), origin);
  }
  return plan;
}

}  // namespace shardwright::cli
