// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/ledger.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <tuple>

#include "profiles/data_dir.h"
#include "profiles/data_file.h"
#include "profiles/ledger/ledger_parallel.h"
#include "profiles/ledger/ledger_task.h"
#include "sim/core/base/error.h"
#include "sim/core/base/invalid_plan.h"
#include "sim/core/base/nearest.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/parse_value.h"
#include "sim/core/base/words.h"
#include "sim/core/hf/config.h"
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

}  // namespace shardwright::profiles
