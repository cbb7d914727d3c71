// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/ledger.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "profiles/data_file.h"
#include "profiles/ledger/ledger_profile.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"
#include "sim/core/hf/config.h"
#include "sim/core/parallelism.h"
#include "sim/core/plan_knobs.h"

namespace shardwright::profiles {

namespace {

/// The first line of a table that lacks nothing.
constexpr std::string_view kColumns =
    "id,source,model,arch,layers,hidden,heads,kv_heads,head_dim,ffn,mlp,norm,biases,vocab,tied,"
    "seq_len,gpu,gpus,gpus_per_node,inter_gbps_per_node,stack,strategy,shard_group,micro_batch,"
    "grad_accum,recompute,ckpt_layers,reduce_dtype,optimizer_state,attention,offload,"
    "iter_time_s,time_kind,tokens_per_gpu_s,peak_mem_gib,mem_kind,outcome,locator";
/// Of nodes of GPUs that usually are not linked, where a row does not say: what rented ones have.
constexpr double kNetworkOfUnlinkedGbps = 100;
constexpr std::int64_t kAnyCount = std::numeric_limits<std::int64_t>::max();

/// What a family implies beyond the columns of a row.
struct Family {
  std::string_view name;
  Position position = Position::kRope;
  bool fused_qkv = false;
  bool fused_gate_up = false;
  bool parallel_residual = false;
  bool qk_norm = false, qk_norm_whole = false;
  int norms_per_layer = 2;
  bool heads_share_hidden = false;  // the configuration knows no size of a head of its own
  std::int64_t window = 0;          // of every second layer
  bool sinks = false;               // one more score a head
  // Groups of experts and how many of them a token may reach (n_group, topk_group of the configs).
  std::int64_t groups = 1, groups_per_token = 1;
};
constexpr auto kFamilies = std::to_array<Family>({
    {.name = "llama"},
    {.name = "mistral"},
    {.name = "qwen2"},
    {.name = "qwen3", .qk_norm = true},
    {.name = "phi3", .fused_qkv = true, .fused_gate_up = true},
    {.name = "gemma"},
    {.name = "gemma2", .norms_per_layer = 4, .window = 4096},
    {.name = "gpt2", .position = Position::kLearned, .fused_qkv = true, .heads_share_hidden = true},
    {.name = "gpt_neox", .fused_qkv = true, .parallel_residual = true},
    {.name = "mpt", .position = Position::kLearned, .fused_qkv = true, .heads_share_hidden = true},
    {.name = "gpt", .position = Position::kLearned, .fused_qkv = true, .heads_share_hidden = true},
    {.name = "opt", .position = Position::kLearned, .heads_share_hidden = true},
    {.name = "bloom", .position = Position::kAlibi, .fused_qkv = true, .heads_share_hidden = true},
    {.name = "falcon", .fused_qkv = true, .parallel_residual = true, .norms_per_layer = 1},
    {.name = "phi", .parallel_residual = true, .norms_per_layer = 1},
    {.name = "cohere", .parallel_residual = true, .norms_per_layer = 1},
    {.name = "olmo2", .qk_norm = true, .qk_norm_whole = true},
    {.name = "glm", .fused_gate_up = true},
    {.name = "glm4", .fused_gate_up = true, .norms_per_layer = 4},
    {.name = "granite"},
    {.name = "smollm3"},
    {.name = "stablelm"},
    {.name = "starcoder2"},
    {.name = "nemotron"},
    {.name = "deepseek_v2", .groups = 8, .groups_per_token = 3},
    {.name = "deepseek_v3", .groups = 8, .groups_per_token = 4},
    {.name = "qwen3_moe", .qk_norm = true},
    {.name = "gpt_oss", .window = 128, .sinks = true},
});

/// One row being read: values that make no sense are errors naming file, line and column.
class RowReader {
 public:
  /// `unsupported` takes names that are not known; none: they are errors.
  RowReader(const CsvRow& row, std::string* unsupported) : row_(row), unsupported_(unsupported) {}

  std::string text(std::string_view column) const { return row_.require<std::string>(column); }

  std::int64_t count(std::string_view column, std::int64_t least = 1,
                     std::int64_t most = kAnyCount) const {
    const auto value = row_.require<std::int64_t>(column);
    if (value < least || value > most) {
      row_.fail(column, most == kAnyCount
                            ? fmt::format("a whole number of at least {}", least)
                            : fmt::format("a whole number from {} to {}", least, most));
    }
    return value;
  }

  /// A number above zero, or none when the field is empty.
  std::optional<double> positive(std::string_view column) const {
    const auto value = row_.find<double>(column);
    if (value && *value <= 0) row_.fail(column, "a number above 0, or nothing");
    return value;
  }

  /// The place of the field's word in `words`.
  template <std::size_t N>
  std::size_t choice(std::string_view column, const std::array<std::string_view, N>& words) const {
    const auto at = std::find(words.begin(), words.end(), row_.text(column));
    if (at == words.end()) {
      refuse_name(column, {words.begin(), words.end()});
      return 0;
    }
    return static_cast<std::size_t>(at - words.begin());
  }

  /// For a word that a later version may know: the row is kept and says why it is not predicted.
  void refuse(std::string_view column, const std::string& expected) const {
    if (unsupported_ == nullptr) row_.fail(column, expected);
    *unsupported_ = unknown_word(column, row_.text(column));
  }
  void refuse_name(std::string_view column, const std::vector<std::string>& accepted) const {
    refuse(column, fmt::format("one of {}", fmt::join(accepted, ", ")));
  }

  /// What the row says of a knob; a number that makes no sense is an error in any version.
  void take(const PlanKnob& knob, Plan& plan) const { read_knob(row_, knob, plan, unsupported_); }

  const CsvRow& row() const { return row_; }

 private:
  const CsvRow& row_;
  std::string* unsupported_;
};

/// In place of a family: the model is the one that ships under its name, and sizes repeat it.
constexpr std::string_view kShipped = "config";

/// `columns`: what the row says.
Model shipped_model(const RowReader& read, const Model& columns) {
  const std::filesystem::path folder = data_dir() / "models";
  const std::vector<std::string> names = builtin_models(folder);
  if (std::find(names.begin(), names.end(), columns.name) == names.end()) {
    read.refuse_name("model", nearest_few(columns.name, names, 3));
    return columns;
  }
  Model model = load_model(folder, columns.name);
  const std::array<std::tuple<std::string_view, std::int64_t, std::int64_t>, 5> sizes = {
      {{"layers", columns.layers, model.layers},
       {"hidden", columns.hidden, model.hidden},
       {"heads", columns.heads, model.heads},
       {"ffn", columns.ffn, model.ffn},
       {"vocab", columns.vocab, model.vocab}}};
  for (const auto& [column, given, its] : sizes) {
    if (given != its) read.row().fail(column, fmt::format("{}, as the model has", its));
  }
  model.max_positions = columns.max_positions;
  return model;
}

Model read_model(const RowReader& read, std::int64_t seq_len) {
  Model model;
  model.name = read.text("model");
  const std::string_view arch = read.row().text("arch");
  const bool ships = arch == kShipped;
  const auto* family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                    [&](const Family& known) { return known.name == arch; });
  if (ships) family = kFamilies.begin();
  if (family == kFamilies.end()) {
    std::vector<std::string> names;
    for (const Family& known : kFamilies) names.emplace_back(known.name);
    names.emplace_back(kShipped);
    read.refuse_name("arch", names);
    family = kFamilies.begin();
  }
  model.family = family->name;
  model.position = family->position;
  model.fused_qkv = family->fused_qkv;
  model.fused_gate_up = family->fused_gate_up;
  model.parallel_residual = family->parallel_residual;
  model.qk_norm = family->qk_norm;
  model.qk_norm_whole = family->qk_norm_whole;
  model.norms_per_layer = family->norms_per_layer;
  model.attention_sinks = family->sinks;
  model.layers = read.count("layers", 1, model_limits::kLayers);
  model.sliding_window = family->window;
  model.experts.groups = family->groups;
  model.experts.groups_per_token = family->groups_per_token;
  model.windowed_layers = family->window > 0 ? (model.layers + 1) / 2 : 0;
  model.hidden = read.count("hidden", 1, model_limits::kHidden);
  model.heads = read.count("heads", 1, model_limits::kHeads);
  model.kv_heads = read.count("kv_heads", 1, model.heads);
  model.head_dim = read.count("head_dim", 1, model_limits::kHeadDim);
  if (family->heads_share_hidden && model.hidden % model.heads == 0)
    model.head_dim = model.hidden / model.heads;
  model.ffn = read.count("ffn", 1, model_limits::kFfn);
  model.vocab = read.count("vocab", 1, model_limits::kVocab);
  model.max_positions = seq_len;
  constexpr std::array kActivations = {Activation::kSilu, Activation::kGelu, Activation::kGelu,
                                       Activation::kRelu, Activation::kRelu};
  const std::size_t mlp = read.choice<5>("mlp", {"swiglu", "geglu", "gelu", "relu2", "relu"});
  model.activation = kActivations[mlp];
  model.gated_mlp = mlp < 2;
  model.norm = read.choice<2>("norm", {"rmsnorm", "layernorm"}) == 0 ? Normalization::kRmsNorm
                                                                     : Normalization::kLayerNorm;
  const std::size_t biases = read.choice<3>("biases", {"none", "qkv", "all"});
  const bool all = biases == 2;
  model.qkv_bias = biases > 0;
  model.attention_out_bias = all;
  model.mlp_bias = all;
  model.norm_bias = all && model.norm == Normalization::kLayerNorm;
  model.tied_head = read.choice<2>("tied", {"false", "true"}) == 1;
  return ships ? shipped_model(read, model) : model;
}

/// "every-2": recomputed whole, on every second layer.
std::optional<std::int64_t> stride_of(std::string_view recompute) {
  constexpr std::string_view kEvery = "every-";
  if (!recompute.starts_with(kEvery)) return std::nullopt;
  return parse_int64(recompute.substr(kEvery.size()));
}

void read_recompute(const RowReader& read, std::int64_t layers, Plan& plan) {
  const std::string_view word = read.row().text("recompute");
  // Not stated, or told module by module in a column of its own.
  if (word.empty() || word == "modules") {
    plan.recompute = Recompute::kNone;
    return;
  }
  const bool says_how_many = !read.row().text("ckpt_layers").empty();
  const std::int64_t ckpt_layers = says_how_many ? read.count("ckpt_layers", 0, layers) : layers;
  if (const std::optional<std::int64_t> stride = stride_of(word)) {
    if (*stride < 1 || *stride > layers) {
      read.row().fail("recompute", fmt::format("every-N with N from 1 to {}", layers));
    }
    plan.recompute = Recompute::kFull;
    plan.ckpt_stride = *stride;
    plan.ckpt_layers = ceil_div(layers, *stride);
    return;
  }
  try {
    set_recompute(plan, word);
  } catch (const InvalidPlan&) {
    read.refuse("recompute",
                "none, full, selective-op, every-N, or norm, swiglu, ffn, attention, block "
                "joined by '+'");
  }
  switch (plan.recompute) {
    case Recompute::kNone:
      if (says_how_many && ckpt_layers != 0)
        read.row().fail("ckpt_layers", "0 where recompute is none");
      break;
    case Recompute::kFull:
      plan.ckpt_layers = ckpt_layers;
      break;
    case Recompute::kSelectiveOp:  // these two are policies of every layer
    case Recompute::kPieces:
      plan.ckpt_layers = layers;
  }
}

Plan read_plan(const RowReader& read, const CsvTable& table, std::int64_t layers) {
  Plan plan;
  if (const auto strategy = strategy_from(read.row().text("strategy"))) {
    plan.strategy = *strategy;
  } else {
    read.refuse_name("strategy", strategy_names());
  }
  for (const PlanKnob& knob : plan_knobs()) {
    // Tables older than November 2026 lack two of these columns.
    if (knob.divides || knob.column.empty() || !table.has_column(knob.column)) continue;
    read.take(knob, plan);
  }
  plan.shard_group = read.row().text("shard_group").empty() ? 0 : read.count("shard_group");
  // Of a strategy that shards nothing the column can only say that all ranks take part.
  if (info_of(plan.strategy).replicates()) plan.shard_group = 0;
  read_recompute(read, layers, plan);
  // PyTorch's optimizers keep their state in the dtype of the parameters they update, and llmq's
  // bf16 state comes with bf16 masters and stochastic rounding.
  plan.master_dtype = plan.moment_dtype;
  plan.stack = shipped_stack(read.text("stack"));
  if (plan.stack.empty()) read.refuse_name("stack", shipped_names(DataKind::kStack));
  return plan;
}

void read_measurements(const RowReader& read, LedgerRow& out) {
  out.iteration_s = read.positive("iter_time_s");
  out.tokens_per_gpu_s = read.positive("tokens_per_gpu_s");
  out.peak_gib = read.positive("peak_mem_gib");
  if (out.iteration_s) {
    read.choice<4>("time_kind", {"published", "from_throughput", "from_tflops", "from_mfu"});
    out.time_kind = read.row().text("time_kind");
  }
  if (out.peak_gib) {
    constexpr std::array<std::string_view, 4> kCounters = {"peak_allocated", "peak_active",
                                                           "peak_reserved", "other"};
    const std::size_t counter = read.choice("mem_kind", kCounters);
    // Of a counter that is not said nothing can be compared.
    if (counter == 3) {
      out.peak_gib.reset();
    } else {
      out.counter = static_cast<MemoryCounter>(counter + 1);
    }
  }
  out.out_of_memory = read.choice<2>("outcome", {"ok", "oom"}) == 1;
}

/// Columns that tables older than November 2026 lack.
void read_software(const RowReader& read, const CsvTable& table, LedgerRow& out) {
  const auto given = [&](std::string_view column) {
    return table.has_column(column) && !read.row().text(column).empty();
  };
  const auto flag = [&](std::string_view column) -> std::optional<bool> {
    if (!given(column)) return std::nullopt;
    return read.choice<2>(column, {"false", "true"}) == 1;
  };
  out.logits_kept = flag("logits_kept");
  out.no_sync = flag("no_sync");
  out.kv_cache = flag("kv_cache");
  if (given("power_limit_w")) out.power_limit_w = read.positive("power_limit_w");
  if (given("software")) out.software = read.row().text("software");
  for (const std::string name :
       {"note", "notes"}) {  // of the plain table, and of model-parallel plans
    if (given(name)) out.note = read.row().text(name);
  }
  constexpr std::string_view kContradicted = "contradicted by ";
  if (out.note.starts_with(kContradicted)) out.suspect = out.note;
}

enum class UnknownNames : std::uint8_t { kKept, kErrors };

LedgerRow read_row(const CsvRow& row, const CsvTable& table, const std::vector<std::string>& gpus,
                   UnknownNames unknown = UnknownNames::kKept) {
  LedgerRow out;
  const bool parallel = has_parallel_columns(table);
  const RowReader read(row, unknown == UnknownNames::kKept ? &out.unsupported : nullptr);
  out.line = row.line();
  out.id = read.text("id");
  out.source = read.text("source");
  out.locator = row.text("locator");
  out.gpu = read.text("gpu");
  if (std::find(gpus.begin(), gpus.end(), out.gpu) == gpus.end()) read.refuse_name("gpu", gpus);
  out.gpus_per_node = read.count("gpus_per_node", 1, 1 << 10);
  out.inter_gbps_per_node = read.positive("inter_gbps_per_node");
  out.model = read_model(read, read.count("seq_len"));
  out.plan = read_plan(read, table, out.model.layers);
  if (row.text("stack") != out.plan.stack) out.stack_called = row.text("stack");
  if (parallel) read_parallel_columns(row, out);
  read_task(row, table, out);
  read_measurements(read, out);
  read_software(read, table, out);
  try {
    check_model(out.model);
  } catch (const Error& error) {
    throw Error(fmt::format("{}, line {}: {}", table.file(), row.line(), error.what()));
  }
  return out;
}

}  // namespace

std::string_view name_of(MemoryCounter counter) {
  static constexpr std::array<std::string_view, 4> kNames = {"", "peak_allocated", "peak_active",
                                                             "peak_reserved"};
  static_assert(kNames.size() == static_cast<std::size_t>(MemoryCounter::kPeakReserved) + 1);
  return name_in(kNames, counter);
}

std::filesystem::path shipped_ledger() {
  return data_dir() / "published" / "ledger.csv";
}

std::vector<LedgerRow> load_strangers() {
  std::vector<LedgerRow> rows;
  for (const char* table : {"strangers.csv", "strangers_lora.csv"}) {
    std::vector<LedgerRow> more = load_ledger(data_dir() / "published" / table);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

std::vector<LedgerRow> load_ledger(const std::filesystem::path& path) {
  return read_ledger(CsvTable::load(path));
}

std::vector<LedgerRow> read_ledger(const CsvTable& table) {
  for (const std::string& column : split_commas(kColumns)) table.column(column);
  if (table.size() == 0) {
    throw Error(fmt::format("{}: there is no row, expected at least one", table.file()));
  }
  const std::vector<std::string> gpus = shipped_names(DataKind::kGpu);
  std::vector<LedgerRow> rows;
  std::set<std::string> ids;
  for (std::size_t i = 0; i < table.size(); ++i) {
    rows.push_back(read_row(table[i], table, gpus));
    if (!ids.insert(rows.back().id).second) table[i].fail("id", "a name that no row before has");
  }
  // A name that is not known costs its row; where no row is left, it is the table's mistake.
  if (!has_parallel_columns(table) &&
      std::none_of(rows.begin(), rows.end(),
                   [](const LedgerRow& row) { return row.unsupported.empty(); })) {
    read_row(table[0], table, gpus, UnknownNames::kErrors);
  }
  return rows;
}

ClusterFile cluster_of(const LedgerRow& row) {
  if (const std::filesystem::path machine = published_machine(row.source, row.gpu);
      !machine.empty()) {
    return load_cluster(machine.string());
  }
  ClusterFile cluster = make_cluster(row.gpu, row.gpus_per_node, row.inter_gbps_per_node);
  if (row.inter_gbps_per_node || cluster.cluster.nics_per_node > 0) return cluster;
  return make_cluster(row.gpu, row.gpus_per_node, kNetworkOfUnlinkedGbps);
}

StackFile stack_of(const LedgerRow& row) {
  StackFile file = load_preset(row.plan.stack, row.software);
  // A release that tells nothing leaves the name by which the row called its software.
  if (file.software.empty() && !row.stack_called.empty())
    file = load_preset(row.plan.stack, row.stack_called);
  Stack& stack = file.stack;
  stack.keeps_logits = row.logits_kept.value_or(stack.keeps_logits);
  stack.no_sync = row.no_sync.value_or(stack.no_sync);
  if (!row.adapted.empty()) stack.parallel.adapted = row.adapted;
  stack.keeps_key_values = row.kv_cache.value_or(stack.keeps_key_values);
  return file;
}

MachineKey machine_key(const LedgerRow& row) {
  return {row.gpu,           row.gpus_per_node, row.inter_gbps_per_node,
          row.plan.stack,    row.software,      row.logits_kept,
          row.no_sync,       row.kv_cache,      row.source,
          row.power_limit_w, row.stack_called,  row.adapted};
}

namespace {

void read_size(const CsvRow& row, std::string_view column, std::int64_t& value) {
  const auto given = row.find<std::int64_t>(column);
  if (!given) return;
  if (*given < 0) row.fail(column, "a whole number");
  value = *given;
}

void read_model(const CsvRow& row, Model& model) {
  Experts& experts = model.experts;
  read_size(row, "experts", experts.count);
  read_size(row, "topk", experts.per_token);
  read_size(row, "moe_ffn", experts.ffn);
  read_size(row, "shared_ffn", experts.shared_ffn);
  read_size(row, "dense_layers", experts.first_layer);
  read_size(row, "mtp", model.mtp_layers);
  std::string latent(row.text("mla"));
  if (latent.empty()) return;
  std::replace(latent.begin(), latent.end(), '/', ',');
  std::vector<std::int64_t> sizes;
  for (const std::string& part : split_commas(latent)) {
    sizes.push_back(parse_int64(part).value_or(-1));
  }
  if (sizes.size() != 5 || *std::min_element(sizes.begin(), sizes.end()) < 0) {
    row.fail("mla", "q_lora/kv_lora/qk_nope/qk_rope/v");
  }
  model.latent = {sizes[1], sizes[0], sizes[2], sizes[3], sizes[4]};
  model.head_dim = sizes[2] + sizes[3];
}

/// "TE:attn", "full_iteration", "none:..." as recipes write it.
std::optional<CudaGraphs> read_graphs(const CsvRow& row) {
  const std::string_view text = row.text("cuda_graph");
  if (text.empty()) return std::nullopt;
  if (text.starts_with("none")) return CudaGraphs::kNone;
  const auto holds = [&](std::string_view module) {
    return text.find(module) != std::string_view::npos;
  };
  if (holds("full_iteration")) return CudaGraphs::kStep;
  if (!holds("'")) return CudaGraphs::kLayers;
  // A recurrence is the same half of a layer.
  const bool attention = holds("'attn'") || holds("'mamba'"),
             rest = holds("'moe_router'") || holds("'mlp'");
  return attention && rest ? CudaGraphs::kLayers
         : attention       ? CudaGraphs::kAttention
                           : CudaGraphs::kRouter;
}

void read_recomputed_modules(const CsvRow& row, LedgerRow& out) {
  if (row.text("recompute") != "modules") return;
  const std::string_view modules = row.text("recompute_modules");
  try {
    set_recompute(out.plan, modules);
  } catch (const InvalidPlan&) {
    out.unsupported = unknown_word("recompute_modules", modules);
  }
  out.plan.ckpt_layers = out.model.layers;
}

/// Whether a row means what it says of a knob: recipes keep settings of what they do not use.
bool counts(const CsvRow& row, const PlanKnob& knob, const Plan& plan) {
  const std::string_view text = row.text(knob.column);
  if (knob.name == "sp" || knob.name == "tp-overlap") return plan.parallel.tp > 1;
  if (knob.name == "fp8-recipe") return plan.numerics.precision == Precision::kFp8;
  if (knob.name == "pp-schedule") return text != "none";
  // "embedding and loss count as a layer" is what equal parts come to where they do.
  if (knob.name == "pp-layout") return text.find('|') != std::string_view::npos;
  return true;
}

/// What the row leaves to its preset of the software.
void read_usual(const CsvRow& row, LedgerRow& out) {
  static std::map<std::array<std::string, 4>, UsualPlan> known;
  const std::string architecture(row.text("arch")), gpu(row.text("gpu"));
  const auto [at, fresh] = known.try_emplace({out.plan.stack, out.software, architecture, gpu});
  if (fresh && !out.plan.stack.empty()) {
    at->second = usual_plan(load_preset(out.plan.stack, out.software).stack.id, architecture, gpu);
  }
  const UsualPlan& usual = at->second;
  if (row.text("reduce_dtype").empty() && usual.reduce_dtype) {
    out.plan.reduce_dtype = *usual.reduce_dtype;
  }
  if (row.text("recompute").empty() && !usual.recompute.empty()) {
    set_recompute(out.plan, usual.recompute);
    out.plan.ckpt_layers = out.model.layers;
  }
  Parallelism& p = out.plan.parallel;
  if (out.model.is_moe() && !p.dispatcher && !p.expert_capacity) p.dispatcher = usual.dispatcher;
  Numerics& n = out.plan.numerics;
  const bool scaled_so = n.fp8_recipe == Fp8Recipe::kDelayed ||
                         n.fp8_recipe == Fp8Recipe::kTensorwise ||
                         n.fp8_recipe == Fp8Recipe::kMxfp8;
  if (row.text("fp8_params").empty()) {
    n.fp8_params = usual.fp8_params && n.precision == Precision::kFp8 && scaled_so;
  }
}

}  // namespace

std::string unknown_word(std::string_view column, std::string_view word) {
  return fmt::format("{} is {}, which is not known", column, word);
}

void read_knob(const CsvRow& row, const PlanKnob& knob, Plan& plan, std::string* unsupported) {
  try {
    knob.from_row(row, plan);
  } catch (const Error&) {  // goes on where it is no unknown word
    const std::string_view text = row.text(knob.column);
    const bool is_word = !text.empty() && !parse_double(text);
    if (unsupported == nullptr || !is_word) throw;
    *unsupported = unknown_word(knob.column, text);
  }
}

bool has_parallel_columns(const CsvTable& table) {
  return table.has_column("tp") && table.has_column("pp");
}

void read_parallel_columns(const CsvRow& row, LedgerRow& out) {
  read_model(row, out.model);
  Plan& plan = out.plan;
  for (const PlanKnob& knob : plan_knobs()) {
    if (knob.divides && !knob.column.empty() && counts(row, knob, plan))
      read_knob(row, knob, plan, &out.unsupported);
  }
  Parallelism& p = plan.parallel;
  // One chunk a stage leaves nothing to interleave.
  if (p.virtual_stages == 1 && info_of(p.schedule()).takes_virtual_stages()) p.pp_schedule.reset();
  // Token-drop recipes pad every expert to its balanced rows.
  if (row.text("routing") == "token-drop") p.expert_capacity = 1;
  p.cuda_graphs = read_graphs(row);
  out.software = row.text("version");  // unless a column of its own says more
  read_usual(row, out);
  read_recomputed_modules(row, out);
  out.quality = row.text("quality");
  out.version = row.text("version");
}

std::string shipped_stack(std::string_view name) {
  const std::vector<std::string> shipped = shipped_names(DataKind::kStack);
  if (std::find(shipped.begin(), shipped.end(), name) != shipped.end()) return std::string(name);
  static const JsonFile similar = JsonFile::load(data_dir() / "similar_stacks.json");
  const JsonReader names = similar.root().require_object("similar");
  return names.optional<std::string>(name, "");
}

std::filesystem::path published_machine(std::string_view source, std::string_view gpu) {
  static const JsonFile machines = JsonFile::load(data_dir() / "published" / "machines.json");
  for (const JsonReader& machine : machines.root().require_array("machines")) {
    if (machine.require<std::string>("source") == source &&
        machine.require<std::string>("gpu") == gpu) {
      return data_dir() / "published" / machine.require<std::string>("cluster");
    }
  }
  return {};
}

namespace {

constexpr std::int64_t kUsualRank = 16;
constexpr std::int64_t kLargestRank = 1 << 16;
constexpr std::string_view kRankInNotes = "LoRA dim ";

std::string_view text_of(const CsvRow& row, const CsvTable& table, std::string_view column) {
  return table.has_column(column) ? row.text(column) : std::string_view{};
}

std::int64_t rank_of(const CsvRow& row, const CsvTable& table) {
  if (const std::string_view given = text_of(row, table, "lora_rank"); !given.empty()) {
    const auto rank = parse_int64(given);
    if (!rank || *rank < 1 || *rank > kLargestRank)
      row.fail("lora_rank", "a whole number from 1 to 65536, or nothing");
    return *rank;
  }
  const std::string_view notes = text_of(row, table, "notes");
  const std::size_t at = notes.find(kRankInNotes);
  if (at == std::string_view::npos) return kUsualRank;
  const std::string_view from = notes.substr(at + kRankInNotes.size());
  const auto rank = parse_int64(from.substr(0, from.find_first_not_of("0123456789")));
  return rank && *rank >= 1 && *rank <= kLargestRank ? *rank : kUsualRank;
}

/// What "LoRA dim 16 on all projections" and the like say of the matrices; empty: nothing.
std::string adapted_by_notes(std::string_view notes) {
  const std::size_t at = notes.find("LoRA");
  if (at == std::string_view::npos) return {};
  const std::string_view from = notes.substr(at);
  const auto says = [&](std::string_view word) { return from.find(word) != from.npos; };
  if (says("all projections") || says("all linear") || says("linear_fc")) return "all";
  if (says("linear_proj") || says("attention")) return "attention";
  return says("linear_qkv") || says("on qkv") ? "qkv" : "";
}

}  // namespace

void read_task(const CsvRow& row, const CsvTable& table, LedgerRow& out) {
  const std::string_view task = text_of(row, table, "task");
  if (task.empty() || task == "pretrain" || task == "sft") return;
  if (task != "lora" && task != "qlora") {
    out.unsupported = unknown_word("task", task);
    return;
  }
  Numerics& numerics = out.plan.numerics;
  numerics.lora = rank_of(row, table);
  out.adapted = text_of(row, table, "lora_modules");
  if (out.adapted.empty()) out.adapted = adapted_by_notes(text_of(row, table, "notes"));
  if (!out.adapted.empty() && !from_word<Adapted>(out.adapted)) {
    out.unsupported = unknown_word("lora_modules", out.adapted);
    out.adapted.clear();
  }
  const std::string_view quantize = text_of(row, table, "quantize");
  if (quantize.empty()) {
    numerics.quantize = task == "qlora" ? Quantize::kNf4 : Quantize::kNone;
  } else if (const auto kept = from_word<Quantize>(quantize)) {
    numerics.quantize = *kept;
  } else {
    out.unsupported = unknown_word("quantize", quantize);
  }
}

namespace {

template <typename Enum>
std::vector<Enum> settings_of(const std::vector<std::string>& words) {
  std::vector<Enum> settings;
  for (const std::string& word : words) {
    if (const auto setting = from_word<Enum>(word)) settings.push_back(*setting);
  }
  return settings;
}

/// Of an optional knob, or of one with a value that leaves the choice to others.
template <typename Knob, typename Value>
void unsay(Knob& knob, const Value& usual, Knob unsaid = {}) {
  if (knob == usual) knob = unsaid;
}

}  // namespace

SoftwareSettings software_settings(const Stack& stack) {
  const SoftwareChoices& choices = stack.parallel.choices;
  return {settings_of<TensorOverlap>(choices.tp_overlap),
          settings_of<Dispatcher>(choices.dispatcher),
          settings_of<PipelineKind>(choices.pp_schedule),
          choices.ep_overlap ? std::vector{false, true} : std::vector<bool>{}};
}

TensorOverlap usual_overlap(const Stack& stack, const Model& model, Precision precision) {
  if (model.is_moe()) return TensorOverlap::kNone;
  const auto usual =
      from_word<TensorOverlap>(stack.parallel.tp_overlap).value_or(TensorOverlap::kNone);
  const bool unknown_there = precision == Precision::kNvfp4 && usual == TensorOverlap::kUserbuffers;
  return unknown_there ? TensorOverlap::kNone : usual;
}

Dispatcher usual_dispatcher(const Stack& stack) {
  return from_word<Dispatcher>(stack.parallel.dispatcher).value_or(Dispatcher::kAllToAll);
}

Plan without_defaults(Plan plan, const Model& model, const Stack& stack) {
  const ParallelSoftware& software = stack.parallel;
  Parallelism& p = plan.parallel;
  Parallelism unsaid;
  unsaid.virtual_stages = p.virtual_stages;
  unsay(p.pp_schedule, unsaid.schedule());
  unsay(p.sp, p.tp > 1);
  unsay(p.tp_overlap, p.sequence_parallel() ? usual_overlap(stack, model, plan.numerics.precision)
                                            : TensorOverlap::kNone);
  if (p.cp == 1) p.cp_comm.reset();
  unsay(p.cp_comm, from_word<ContextComm>(software.cp_comm).value_or(ContextComm::kRing));
  unsay(p.ep_overlap, false);
  unsay(p.cuda_graphs, from_word<CudaGraphs>(software.cuda_graphs).value_or(CudaGraphs::kNone));
  if (model.is_moe()) {
    unsay(p.dispatcher, usual_dispatcher(stack));
    unsay(p.expert_load, ExpertLoad{});
  }
  if (plan.numerics.precision == Precision::kFp8)
    unsay(plan.numerics.fp8_recipe, Numerics{}.recipe());
  unsay(plan.allocator,
        stack.allocator.expandable_segments ? AllocatorKind::kExpandable : AllocatorKind::kNative);
  unsay(plan.sum_features, p.tp);
  unsay(plan.sum_uses, std::int64_t{p.pp > 1 ? 2 : 1});
  if (plan.packed_length >= plan.seq_len) plan.packed_length = 0;
  return plan;
}

}  // namespace shardwright::profiles
