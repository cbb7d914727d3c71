// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/whole_runs.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::profiles {
namespace {

constexpr double kTera = 1e12;
constexpr double kSecondsPerHour = 3600;

std::optional<double> positive_or_none(const CsvRow& row, std::string_view column) {
  const std::optional<double> value = row.find<double>(column);
  if (value && !(*value > 0)) row.fail(column, "a number above 0, or nothing");
  return value;
}

std::optional<std::int64_t> count_or_none(const CsvRow& row, std::string_view column) {
  const std::optional<double> value = positive_or_none(row, column);
  if (!value) return std::nullopt;
  if (*value < 1 || *value > 1e9) row.fail(column, "a whole number from 1 to 1e9, or nothing");
  return static_cast<std::int64_t>(*value);
}

/// 0 where it is empty or 0.
std::int64_t count_or_zero(const CsvRow& row, std::string_view column) {
  return row.text(column) == "0" ? 0 : count_or_none(row, column).value_or(0);
}

/// The number that a text begins with; 0 where it begins with none.
std::int64_t leading_count(const CsvRow& row, std::string_view column) {
  const std::string_view text = row.text(column);
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return parse_int64(text.substr(0, digits)).value_or(0);
}

bool filled(const CsvRow& row, std::string_view column) {
  return !row.text(column).empty();
}

Model read_model(const CsvRow& row, std::int64_t seq_len) {
  const auto size = [&](std::string_view column) {
    const std::optional<std::int64_t> value = count_or_none(row, column);
    if (!value) row.fail(column, "a number, as layers is given");
    return *value;
  };
  Model model;
  model.name = row.require<std::string>("model");
  model.family = "llama";
  model.layers = size("layers");
  model.hidden = size("hidden");
  model.heads = size("heads");
  model.kv_heads = size("kv_heads");
  model.head_dim = size("head_dim");
  model.ffn = size("ffn");
  model.vocab = size("vocab");
  model.max_positions = seq_len;
  const std::string_view mlp = row.text("mlp");
  model.gated_mlp = mlp == "swiglu" || mlp == "geglu";
  model.activation = model.gated_mlp ? Activation::kSilu : Activation::kGelu;
  model.norm = model.gated_mlp ? Normalization::kRmsNorm : Normalization::kLayerNorm;
  model.tied_head = row.text("tied") == "yes";
  model.parallel_residual = row.text("parallel_block") == "yes";
  return model;
}

/// Experts, latent attention and layers that predict further tokens, of what read_model() read.
void read_experts(const CsvRow& row, Model& model) {
  const auto size = [&](std::string_view column) { return count_or_zero(row, column); };
  Experts& experts = model.experts;
  experts.count = size("experts");
  experts.per_token = size("topk");
  experts.ffn = size("moe_ffn");
  experts.shared_ffn = size("shared_experts") * experts.ffn;
  const std::int64_t with_experts = size("moe_layers");
  if (2 * with_experts == model.layers) {  // Llama 4 Maverick: every second one
    experts.first_layer = 1;
    experts.every = 2;
  } else {
    experts.first_layer = model.layers - with_experts;
  }
  model.mtp_layers = size("mtp");
  if (!filled(row, "mla_kv_rank")) return;
  model.latent = {size("mla_kv_rank"), size("mla_q_rank"), size("mla_nope_dim"),
                  size("mla_rope_dim"), size("mla_v_dim")};
  model.head_dim = model.latent.nope_dim + model.latent.rope_dim;
}

void read_architecture(const CsvTable& table, const CsvRow& row, WholeRun& run) {
  run.experts = filled(row, "experts");
  if (!filled(row, "layers")) {
    run.no_model = "the architecture is not published";
    return;
  }
  Model model = read_model(row, std::max<std::int64_t>(run.seq_len, 1));
  if (run.experts && !table.has_column("moe_layers")) {
    run.no_model = "the shape of its experts is not published";
    return;
  }
  if (run.experts) read_experts(row, model);
  run.attention_flops = 6 * static_cast<double>(model.layers) *
                        static_cast<double>(model.heads * model.head_dim) *
                        static_cast<double>(run.seq_len);
  try {
    check_model(model);
    run.model = model;
  } catch (const Error& error) {
    run.no_model = error.what();
  }
}

/// Active on a token: counted from the architecture, else as the authors say; 0: neither.
double parameters_of(const CsvRow& row) {
  for (const char* column :
       {"params_active", "params_active_published", "params_total_published", "params_total"}) {
    if (const std::optional<double> value = positive_or_none(row, column)) return *value;
  }
  return 0;
}

std::string missing_of(const WholeRun& run) {
  if (run.tokens <= 0) return "the number of tokens is not published";
  if (run.gpu_hours <= 0) return "the GPU hours are not published";
  if (run.peak_flops <= 0) return "the peak of the GPU is not given";
  if (run.parameters <= 0) return "neither architecture nor number of parameters is published";
  return "";
}

WholeRun read_run(const CsvTable& table, const CsvRow& row) {
  WholeRun run;
  run.line = row.line();
  run.id = row.require<std::string>("id");
  run.family = row.require<std::string>("family");
  run.source = row.text("source");
  if (table.has_column("year")) run.year = count_or_zero(row, "year");
  const std::string_view tier = row.text("tier");
  if (tier != "A" && tier != "B" && tier != "C") row.fail("tier", "A, B or C");
  run.tier = tier.front();
  run.tokens = positive_or_none(row, "tokens").value_or(0);
  run.seq_len = count_or_none(row, "seq_len").value_or(0);
  run.gpu = row.require<std::string>("gpu");
  run.peak_flops = positive_or_none(row, "peak_tflops").value_or(0) * kTera;
  run.gpu_hours = positive_or_none(row, "gpu_hours").value_or(0);
  run.gpus = count_or_none(row, "gpus");
  run.parameters = parameters_of(row);
  run.matmul_parameters = positive_or_none(row, "params_matmul_active").value_or(run.parameters);
  run.global_batch_tokens = positive_or_none(row, "global_batch_tokens");
  run.tensor = leading_count(row, "tp");
  run.pipeline = leading_count(row, "pp");
  run.expert = leading_count(row, "ep");
  run.micro_batch = count_or_none(row, "micro_batch");
  run.sharding = row.text("sharding");
  run.recompute = row.text("recompute");
  if (table.has_column("precision")) run.precision = row.text("precision");
  run.software = row.text("software");
  run.steady_mfu = positive_or_none(row, "steady_mfu_6n");
  read_architecture(table, row, run);
  run.not_scorable = missing_of(run);
  if (run.not_scorable.empty()) {
    run.whole_mfu =
        6 * run.parameters * run.tokens / (run.gpu_hours * kSecondsPerHour * run.peak_flops);
  }
  return run;
}

}  // namespace

std::filesystem::path shipped_whole_runs() {
  return data_dir() / "published" / "whole_runs.csv";
}

std::vector<WholeRun> load_whole_runs(const std::filesystem::path& path) {
  return read_whole_runs(CsvTable::load(path));
}

const std::vector<WholeRun>& shipped_trainings() {
  static const std::vector<WholeRun> trainings = load_whole_runs(shipped_whole_runs());
  return trainings;
}

std::vector<WholeRun> read_whole_runs(const CsvTable& table) {
  if (table.size() == 0)
    throw Error(fmt::format("{}: there is no row, expected at least one", table.file()));
  std::vector<WholeRun> runs;
  std::set<std::string> ids;
  for (std::size_t i = 0; i < table.size(); ++i) {
    runs.push_back(read_run(table, table[i]));
    if (!ids.insert(runs.back().id).second) table[i].fail("id", "a name that no row before has");
  }
  return runs;
}

}  // namespace shardwright::profiles
