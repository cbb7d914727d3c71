// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/ledger.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "profiles/data_file.h"
#include "profiles/ledger/ledger_profile.h"
#include "sim/core/base/error.h"
#include "sim/core/base/read_file.h"
#include "tests/profiles/published_run.h"
#include "tests/support/refusal.h"

namespace shardwright::profiles {

namespace {

using ::testing::HasSubstr;
using testing::refusal_of;

using Fields = std::map<std::string, std::string>;

/// A valid row; tests change one field at a time.
Fields llama_row() {
  return {{"id", "a1"},
          {"source", "somebody"},
          {"model", "Llama-2-7B"},
          {"arch", "llama"},
          {"layers", "32"},
          {"hidden", "4096"},
          {"heads", "32"},
          {"kv_heads", "32"},
          {"head_dim", "128"},
          {"ffn", "11008"},
          {"mlp", "swiglu"},
          {"norm", "rmsnorm"},
          {"biases", "none"},
          {"vocab", "32000"},
          {"tied", "false"},
          {"seq_len", "2048"},
          {"gpu", "a100-80g"},
          {"gpus", "64"},
          {"gpus_per_node", "8"},
          {"inter_gbps_per_node", "800"},
          {"stack", "hf-eager"},
          {"strategy", "yafsdp"},
          {"shard_group", "64"},
          {"micro_batch", "1"},
          {"grad_accum", "1"},
          {"recompute", "none"},
          {"ckpt_layers", "0"},
          {"reduce_dtype", "fp32"},
          {"optimizer_state", "fp32"},
          {"attention", "flash"},
          {"offload", "none"},
          {"iter_time_s", "0.81"},
          {"time_kind", "published"},
          {"tokens_per_gpu_s", ""},
          {"peak_mem_gib", ""},
          {"mem_kind", ""},
          {"outcome", "ok"},
          {"locator", "README"}};
}

std::string csv_of(const std::vector<Fields>& rows) {
  std::string text;
  for (const auto& [column, value] : rows.front()) text += (text.empty() ? "" : ",") + column;
  for (const Fields& row : rows) {
    std::string line;
    for (const auto& [column, value] : row) line += "," + value;
    text += "\n" + line.substr(1);
  }
  return text + "\n";
}

std::vector<LedgerRow> read(const std::vector<Fields>& rows) {
  return read_ledger(CsvTable::parse(csv_of(rows), "ledger.csv"));
}

LedgerRow read_with(const Fields& changes) {
  Fields row = llama_row();
  for (const auto& [column, value] : changes) row.at(column) = value;
  return read({row}).at(0);
}

std::string error_with(const Fields& changes) {
  return refusal_of([&] { read_with(changes); });
}

TEST(Ledger, ReadsTheArchitectureFromItsOwnColumns) {
  const LedgerRow row = read_with({});
  EXPECT_EQ(row.id, "a1");
  EXPECT_EQ(row.line, 2U);
  EXPECT_EQ(count_parameters(row.model).total(row.model.layers), 6'738'415'616);  // Llama-2-7B
  EXPECT_EQ(row.plan.strategy, Strategy::kYafsdp);
  EXPECT_EQ(row.plan.gpus, 64);
  EXPECT_EQ(row.plan.recompute, Recompute::kNone);
  EXPECT_EQ(row.plan.master_dtype, DType::kFp32);
  EXPECT_EQ(row.inter_gbps_per_node, 800.0);
  EXPECT_EQ(row.iteration_s, 0.81);
  EXPECT_EQ(row.peak_gib, std::nullopt);
  EXPECT_EQ(row.counter, MemoryCounter::kNone);
  EXPECT_FALSE(row.out_of_memory);
}

// GPT's configurations know no size of a head: heads share the hidden size, whatever a table copied
// from another of its runs.
TEST(Ledger, HeadsOfAGptShareTheHiddenSize) {
  const Fields wide = {{"arch", "gpt"},  {"mlp", "gelu"},     {"hidden", "14336"},
                       {"heads", "128"}, {"kv_heads", "128"}, {"head_dim", "224"}};
  EXPECT_EQ(read_with(wide).model.head_dim, 112);
  Fields odd = wide;
  odd["heads"] = odd["kv_heads"] = "96";  // do not divide it: the column counts
  EXPECT_EQ(read_with(odd).model.head_dim, 224);
  Fields qwen = wide;
  qwen["arch"] = "qwen3";
  EXPECT_EQ(read_with(qwen).model.head_dim, 224);
}

// MPT's positions are learned, as many as the sequence has tokens; q, k and v are one matrix.
TEST(Ledger, ReadsMptWithLearnedPositionsAndBiases) {
  const LedgerRow row = read_with({{"arch", "mpt"},
                                   {"mlp", "gelu"},
                                   {"norm", "layernorm"},
                                   {"biases", "all"},
                                   {"tied", "true"},
                                   {"ffn", "16384"},
                                   {"vocab", "50368"}});
  EXPECT_EQ(row.model.position, Position::kLearned);
  EXPECT_EQ(row.model.max_positions, 2048);
  EXPECT_TRUE(row.model.fused_qkv && row.model.tied_head && row.model.norm_bias);
  EXPECT_TRUE(row.model.qkv_bias && row.model.attention_out_bias && row.model.mlp_bias);
  EXPECT_FALSE(row.model.gated_mlp);
  const ParameterCounts counts = count_parameters(row.model);
  EXPECT_EQ(counts.head, 0);
  EXPECT_EQ(counts.positions, 2048 * 4096);
  EXPECT_EQ(counts.layer_biases, 3 * 4096 + 4096 + 16384 + 4096);
}

TEST(Ledger, ReadsBiasesOfQueryKeyAndValueAlone) {
  const LedgerRow row = read_with({{"arch", "qwen2"}, {"biases", "qkv"}});
  EXPECT_TRUE(row.model.qkv_bias);
  EXPECT_FALSE(row.model.attention_out_bias || row.model.mlp_bias || row.model.norm_bias);
}

TEST(Ledger, ReadsEveryWayToRecompute) {
  Plan plan = read_with({{"recompute", "full"}, {"ckpt_layers", "5"}}).plan;
  EXPECT_EQ(plan.recompute, Recompute::kFull);
  EXPECT_EQ(plan.ckpt_layers, 5);
  EXPECT_EQ(plan.ckpt_stride, 1);

  plan = read_with({{"recompute", "every-2"}, {"ckpt_layers", "16"}}).plan;
  EXPECT_EQ(plan.recompute, Recompute::kFull);
  EXPECT_EQ(plan.ckpt_stride, 2);
  EXPECT_EQ(plan.ckpt_layers, 16);
  EXPECT_TRUE(plan.checkpointed(30));
  EXPECT_FALSE(plan.checkpointed(31));

  plan = read_with({{"recompute", "selective-op"}, {"ckpt_layers", "32"}}).plan;
  EXPECT_EQ(plan.recompute, Recompute::kSelectiveOp);
  EXPECT_EQ(plan.ckpt_layers, 32);

  plan = read_with({{"recompute", "swiglu+norm"}, {"ckpt_layers", "0"}}).plan;
  EXPECT_EQ(plan.recompute, Recompute::kPieces);
  EXPECT_EQ(plan.pieces, kPieceSwiglu | kPieceNorm);
  EXPECT_EQ(plan.ckpt_layers, 32);
}

TEST(Ledger, ReadsOptimizerStateAsTheDtypeOfTheMasters) {
  const Plan plan = read_with({{"optimizer_state", "bf16"}, {"reduce_dtype", "bf16"}}).plan;
  EXPECT_EQ(plan.moment_dtype, DType::kBf16);
  EXPECT_EQ(plan.master_dtype, DType::kBf16);
  EXPECT_EQ(plan.reduce_dtype, DType::kBf16);
}

TEST(Ledger, ReadsMemoryWithItsCounterAndRowsWithoutATime) {
  const LedgerRow row = read_with({{"iter_time_s", ""},
                                   {"time_kind", ""},
                                   {"peak_mem_gib", "38.668"},
                                   {"mem_kind", "peak_active"},
                                   {"outcome", "oom"}});
  EXPECT_EQ(row.iteration_s, std::nullopt);
  EXPECT_EQ(row.peak_gib, 38.668);
  EXPECT_EQ(row.counter, MemoryCounter::kPeakActive);
  EXPECT_TRUE(row.out_of_memory);
}

TEST(Ledger, TakesTheUsualNetworkWhereNoneIsStated) {
  EXPECT_EQ(cluster_of(read_with({{"inter_gbps_per_node", ""}})).cluster.node_net_bytes_per_s(),
            1600e9 / 8);
  EXPECT_EQ(cluster_of(read_with({})).cluster.node_net_bytes_per_s(), 800e9 / 8);
}

// The 800 Gb/s of the YaFSDP rows are those of one described cluster, efficiency included.
TEST(Ledger, TakesTheDescribedClusterWhoseNetworkIsStated) {
  const Cluster described = load_cluster("a100-80g-4xhdr200").cluster;
  const Cluster found = cluster_of(read_with({})).cluster;
  EXPECT_EQ(found.nic_efficiency, described.nic_efficiency);
  EXPECT_EQ(found.nics_per_node, described.nics_per_node);
  const Cluster usual = load_cluster("dgx-a100-80g").cluster;
  ASSERT_NE(usual.nic_efficiency, described.nic_efficiency);
  EXPECT_EQ(cluster_of(read_with({{"inter_gbps_per_node", "400"}})).cluster.nic_efficiency,
            usual.nic_efficiency);
}

TEST(Ledger, ReadsWhatTheSourcesSoftwareDid) {
  const LedgerRow usual = read_with({});
  EXPECT_EQ(usual.plan.allocator, AllocatorKind::kStack);
  EXPECT_EQ(usual.logits_kept, std::nullopt);
  EXPECT_EQ(usual.suspect, "");
  Fields row = llama_row();
  row["stack"] = "torch-eager";
  row["strategy"] = "fsdp2";
  row["allocator"] = "expandable";
  row["logits_kept"] = "true";
  row["loss_chunks"] = "8";
  row["no_sync"] = "true";
  row["kv_cache"] = "false";
  row["software"] = "torchtitan before 2024-06-12 or so";
  row["note"] = "contradicted by another preset";
  const LedgerRow told = read({row}).at(0);
  EXPECT_EQ(told.plan.allocator, AllocatorKind::kExpandable);
  EXPECT_EQ(told.plan.loss_chunks, 8);
  EXPECT_EQ(told.suspect, "contradicted by another preset");
  const Stack stack = stack_of(told).stack;
  EXPECT_EQ(stack.id, "torch-eager-2024-05");
  EXPECT_EQ(stack.family, "torch-eager");
  EXPECT_TRUE(stack.keeps_logits);
  EXPECT_TRUE(stack.no_sync);
  EXPECT_FALSE(stack.keeps_key_values);
  EXPECT_FALSE(stack.allocator.expandable_segments);  // the plan's word is the plan's
  row["allocator"] = "paged";
  EXPECT_THROW(read({row}), Error);
}

TEST(Ledger, PresetsDifferFromTheirFrameworkInWhatTheySay) {
  LedgerRow row = read_with({});
  row.plan.stack = "mpt-eager";
  EXPECT_EQ(stack_of(row).stack.id, "mpt-eager");
  row.software = "llm-foundry 2023-12, amp_bf16";
  EXPECT_EQ(stack_of(row).stack.id, "mpt-eager");
  row.software = "llm-foundry 2023-05, bf16 PURE";
  const Stack preset = stack_of(row).stack;
  EXPECT_EQ(preset.id, "mpt-eager-2023-05");
  EXPECT_TRUE(preset.recomputes_whole_layers);
  EXPECT_EQ(preset.attention_kernel, "triton");
}

TEST(Ledger, NamesFileLineColumnValueAndWhatIsAccepted) {
  EXPECT_EQ(error_with({{"gpus", "many"}}),
            "ledger.csv, line 2, column gpus: found \"many\", expected an integer");
  EXPECT_EQ(error_with({{"layers", "0"}}),
            "ledger.csv, line 2, column layers: found \"0\", expected a whole number from 1 to "
            "16384");
  EXPECT_THAT(error_with({{"strategy", "fsdp3"}}),
              HasSubstr("column strategy: found \"fsdp3\", expected one of single, ddp, zero1"));
  EXPECT_THAT(error_with({{"stack", "gax"}}), HasSubstr("expected one of aleph-alpha, hf-eager"));
  EXPECT_THAT(error_with({{"gpu", "a100"}}), HasSubstr("column gpu: found \"a100\""));
  EXPECT_THAT(error_with({{"arch", "mamba"}}), HasSubstr("expected one of llama, mistral"));
  EXPECT_THAT(error_with({{"recompute", "some"}}), HasSubstr("none, full, selective-op, every-N"));
  EXPECT_THAT(error_with({{"recompute", "every-0"}}), HasSubstr("N from 1 to 32"));
  EXPECT_THAT(error_with({{"recompute", "full"}, {"ckpt_layers", "33"}}),
              HasSubstr("column ckpt_layers: found \"33\", expected a whole number from 0 to 32"));
  EXPECT_THAT(error_with({{"ckpt_layers", "3"}}), HasSubstr("0 where recompute is none"));
  EXPECT_THAT(error_with({{"iter_time_s", "-1"}}), HasSubstr("a number above 0, or nothing"));
  EXPECT_THAT(error_with({{"time_kind", "guess"}}), HasSubstr("published, from_throughput"));
  EXPECT_THAT(error_with({{"peak_mem_gib", "4"}}), HasSubstr("column mem_kind: found nothing"));
  EXPECT_THAT(error_with({{"outcome", "failed"}}), HasSubstr("one of ok, oom"));
}

TEST(Ledger, ANameThatIsNotKnownCostsItsRowOnly) {
  for (const auto& [column, value] :
       Fields{{"strategy", "fsdp3"}, {"stack", "gax"}, {"gpu", "a100"}, {"arch", "mamba"}}) {
    Fields unknown = llama_row();
    unknown["id"] = "a2";
    unknown[column] = value;
    const std::vector<LedgerRow> rows = read({unknown, llama_row()});
    EXPECT_EQ(rows.at(0).unsupported, fmt::format("{} is {}, which is not known", column, value));
    EXPECT_EQ(rows.at(1).unsupported, "");
  }
}

TEST(Ledger, FamiliesDifferInWhatTheirLayersHold) {
  const Model falcon = read_with({{"arch", "falcon"}, {"mlp", "gelu"}}).model;
  EXPECT_EQ(falcon.norms_per_layer, 1);
  EXPECT_TRUE(falcon.parallel_residual);
  const Model gemma = read_with({{"arch", "gemma2"}, {"mlp", "geglu"}}).model;
  EXPECT_TRUE(gemma.gated_mlp);
  EXPECT_EQ(gemma.activation, Activation::kGelu);
  EXPECT_EQ(gemma.sliding_window, 4096);
  EXPECT_EQ(gemma.windowed_layers, 16);
  EXPECT_TRUE(read_with({{"arch", "olmo2"}}).model.qk_norm_whole);
  EXPECT_FALSE(read_with({{"arch", "opt"}, {"mlp", "relu"}}).model.gated_mlp);
}

// Layers of several kinds, which no column says, are those of a model that ships.
TEST(Ledger, TakesAModelThatShipsByItsName) {
  const Fields nano = {{"model", "nemotron-3-nano-30b-a3b"},
                       {"arch", "config"},
                       {"layers", "52"},
                       {"hidden", "2688"},
                       {"heads", "32"},
                       {"kv_heads", "2"},
                       {"ffn", "1856"},
                       {"mlp", "relu2"},
                       {"vocab", "131072"}};
  const LedgerRow row = read_with(nano);
  EXPECT_EQ(count_parameters(row.model).total(row.model.layers), 31'577'937'344);
  EXPECT_EQ(row.model.max_positions, 2048);
  Fields other = nano;
  other["layers"] = "51";
  EXPECT_THAT(error_with(other), HasSubstr("found \"51\", expected 52, as the model has"));
  other = nano;
  other["model"] = "nemotron-3-nano";
  EXPECT_THAT(error_with(other), HasSubstr("expected one of nemotron-3-nano-30b-a3b"));
}

// A run over several nodes of cards that are usually not linked had some network.
TEST(Ledger, RowsOfSeveralNodesAreLinked) {
  const LedgerRow row = read_with({{"gpu", "rtx-4090"}, {"inter_gbps_per_node", ""}});
  EXPECT_DOUBLE_EQ(cluster_of(row).cluster.node_net_bytes_per_s(), 12.5e9);
  const LedgerRow slower = read_with({{"gpu", "rtx-4090"}, {"inter_gbps_per_node", "25"}});
  EXPECT_DOUBLE_EQ(cluster_of(slower).cluster.node_net_bytes_per_s(), 25e9 / 8);
}

TEST(Ledger, NamesTheLineWhereSizesContradictEachOther) {
  EXPECT_EQ(error_with({{"kv_heads", "5"}}),
            "ledger.csv, line 2: model 'Llama-2-7B': kv_heads is 5, expected a divisor of the 32 "
            "heads");
}

TEST(Ledger, RefusesAMissingColumnARepeatedIdAndAnEmptyTable) {
  for (const auto& [column, value] : llama_row()) {
    Fields row = llama_row();
    row.erase(column);
    try {
      read({row});
      ADD_FAILURE() << "read without " << column;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("there is no column \"" + column + "\""));
    }
  }
  EXPECT_THROW(read({llama_row(), llama_row()}), Error);
  const std::string text = csv_of({llama_row()});
  const std::string head = text.substr(0, text.find('\n') + 1);
  EXPECT_THROW(read_ledger(CsvTable::parse(head, "ledger.csv")), Error);
}

TEST(Ledger, ShippedRowsAreRead) {
  const std::vector<LedgerRow> rows = load_ledger(shipped_ledger());
  ASSERT_EQ(rows.size(), 209U);
  int with_memory = 0;
  int yafsdp = 0;
  for (const LedgerRow& row : rows) {
    with_memory += row.peak_gib.has_value();
    yafsdp += row.source == "YaFSDP README";
    EXPECT_TRUE(row.iteration_s || row.peak_gib) << row.id;
    // A throughput and the time derived from it agree to the digits they were written with.
    if (row.time_kind == "from_throughput") {
      const auto tokens =
          static_cast<double>(row.plan.seq_len * row.plan.micro_batch * row.plan.grad_accum);
      EXPECT_NEAR(*row.iteration_s * *row.tokens_per_gpu_s / tokens, 1, 1e-3) << row.id;
    }
  }
  EXPECT_EQ(with_memory, 26);
  EXPECT_EQ(yafsdp, 32);
}

/// Damaged ledgers end in an Error that names the file, or in rows; never in anything else.
TEST(Ledger, SurvivesRandomDamage) {
  Fields second = llama_row();
  second.at("id") = "a2";
  second.at("recompute") = "every-2";
  second.at("ckpt_layers") = "16";
  const std::string good = csv_of({llama_row(), second});
  const std::string_view bytes = ",\"\r\n019.e+-a x\xEF\xFF\x01";
  std::mt19937 random(5);
  int parsed = 0;
  for (int round = 0; round < 3'000; ++round) {
    std::string text = good;
    for (auto edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = bytes[random() % bytes.size()];
          break;
        case 1:
          text.insert(at, 1, bytes[random() % bytes.size()]);
          break;
        default:
          text.erase(at, 1 + random() % 4);
      }
    }
    try {
      read_ledger(CsvTable::parse(text, "ledger.csv"));
      ++parsed;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("ledger.csv"));
    }
  }
  EXPECT_GT(parsed, 30);
  EXPECT_LT(parsed, 2'970);
}

}  // namespace

// The columns of runs that divided their models: every shipped row reads, and wrong ones are named.

namespace {

std::string shipped_text() {
  return read_file(data_dir() / "published" / "parallel.csv", std::size_t{16} << 20);
}

/// The header and the row of `id`.
std::string table_of(const std::string& id) {
  const std::string text = shipped_text();
  const std::size_t row = text.find("\n" + id + ",") + 1;
  return text.substr(0, text.find('\n') + 1) + text.substr(row, text.find('\n', row) - row) + "\n";
}

LedgerRow row_of(const std::string& id) {
  return read_ledger(CsvTable::parse(table_of(id), "rows.csv")).front();
}

TEST(LedgerParallel, EveryShippedRowReads) {
  const auto rows = load_ledger(data_dir() / "published" / "parallel.csv");
  EXPECT_EQ(rows.size(), 754U);
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(),
                          [](const LedgerRow& row) { return row.out_of_memory; }),
            154);
  for (const LedgerRow& row : rows) {
    EXPECT_EQ(row.plan.gpus % row.plan.parallel.replica(), 0) << row.id;
    EXPECT_FALSE(row.quality.empty()) << row.id;
  }
}

TEST(LedgerParallel, RowsSayTheirParallelLayout) {
  const LedgerRow row = row_of("p1074");
  EXPECT_EQ(row.plan.parallel.tp, 4);
  EXPECT_EQ(row.plan.parallel.pp, 8);
  EXPECT_EQ(row.plan.parallel.virtual_stages, 8);
  EXPECT_EQ(row.plan.parallel.cp, 2);
  EXPECT_EQ(row.plan.parallel.schedule(), PipelineKind::kInterleaved);
  EXPECT_EQ(row.plan.strategy, Strategy::kDistributedOptimizer);
  const ClusterFile cluster = cluster_of(row);
  EXPECT_EQ(cluster.cluster.gpus_per_node, 4);
  EXPECT_EQ(cluster.cluster.nvlink_domain, 72) << "a tray of a rack that NVLink joins";
}

TEST(LedgerParallel, MachinesWithTablesOfTheirOwnTakeThem) {
  const ClusterFile cluster = cluster_of(row_of("p1004"));
  EXPECT_EQ(cluster.cluster.id, "simumax-b200");
  EXPECT_FALSE(cluster.measured_products.empty());
  EXPECT_TRUE(published_machine("somebody else", "b200").empty());
}

TEST(LedgerParallel, SoftwareThatDoesNotShipHasAStandIn) {
  EXPECT_EQ(shipped_stack("megatron-core"), "megatron-core");
  EXPECT_EQ(shipped_stack("meta"), "megatron-core");
  EXPECT_EQ(shipped_stack("hai-llm"), "megatron-core");
  EXPECT_EQ(shipped_stack("nobody's"), "");
  EXPECT_EQ(row_of("p1148").stack_called, "megatron-lm");
}

TEST(LedgerParallel, ReleasesTakeThePresetThatFitsThemBest) {
  const auto preset = [](const std::string& version) {
    return load_preset("megatron-core", version).stack.id;
  };
  EXPECT_EQ(preset("NeMo 24.07 with vboost"), "megatron-core-nemo-24");
  EXPECT_EQ(preset("NeMo 24.03"), "megatron-core-nemo-24.03");
  EXPECT_EQ(preset("25.05"), "megatron-core-nemo");
  EXPECT_EQ(preset("NeMo 26.06"), "megatron-core-nemo-26.06");
  EXPECT_EQ(preset("NeMo 26.06.01"), "megatron-core-nemo-26.06.01");
  EXPECT_EQ(preset("TE 2.11, torch 2.10"), "megatron-core");
  EXPECT_EQ(preset(""), "megatron-core");
  for (const char* name : {"megatron-core-nemo-26.06", "nemo-mlperf"}) {
    EXPECT_EQ(load_stack(name).stack.family, "megatron-core") << name;
  }
  EXPECT_EQ(load_preset("megatron-core", "NeMo 26.06.01").stack.family, "megatron-core");
  for (const char* name : {"megatron-core", "aleph-alpha", "nanotron", "maxtext", "paxml"}) {
    EXPECT_EQ(load_stack(name).stack.family, name) << "no preset of its base";
  }
}

TEST(LedgerParallel, WhatPyTorchHasSinceAMonthHoldsForEagerSoftwareOfLaterOnes) {
  const auto preset = [](const std::string& version) {
    return load_preset("torch-eager", version).stack.id;
  };
  EXPECT_EQ(preset("2025-11"), "torch-eager-2025-11");
  EXPECT_EQ(preset("somebody's trainer 2026-08"), "torch-eager-2025-11");
  EXPECT_EQ(preset("torchtitan 2025-10"), "torch-eager");
  EXPECT_EQ(preset("torchtitan 2025-03"), "torch-eager-2025-03");
  EXPECT_EQ(preset("torchtitan after 2024-10-22"), "torch-eager");
  EXPECT_EQ(preset("2026"), "torch-eager") << "no month";
  EXPECT_EQ(load_preset("torch-compile", "somebody's trainer 2026-08").stack.id, "torch-compile");
}

TEST(LedgerParallel, WhatRowsLeaveOutTheirSoftwareSays) {
  const LedgerRow nemo = row_of("p0101");  // fp8, delayed; says neither
  EXPECT_EQ(nemo.plan.reduce_dtype, DType::kBf16);
  EXPECT_TRUE(nemo.plan.numerics.fp8_params);
  EXPECT_TRUE(row_of("p1175").plan.numerics.fp8_params) << "a later preset";
  const LedgerRow wide = row_of("p0096");  // bf16
  EXPECT_FALSE(wide.plan.numerics.fp8_params);
  const LedgerRow block = row_of("p1379");  // block scales
  EXPECT_FALSE(block.plan.numerics.fp8_params);
  const LedgerRow other = row_of("p1004");  // says fp32, of no release that is known
  EXPECT_EQ(other.plan.reduce_dtype, DType::kFp32);
  const LedgerRow pax = row_of("p0091");
  EXPECT_EQ(pax.plan.recompute, Recompute::kFull);
  EXPECT_EQ(pax.plan.ckpt_layers, pax.model.layers);
}

TEST(LedgerParallel, RecipesOfDeepSeekNameADispatcherUnlessTokensAreDropped) {
  const LedgerRow dropless = row_of("p1379");  // says neither dispatcher nor recomputation
  EXPECT_EQ(dropless.plan.parallel.dispatcher, Dispatcher::kDeepEp);
  EXPECT_EQ(recompute_name(dropless.plan), "mla_up_proj");
  const LedgerRow dropped = row_of("p1371");
  EXPECT_EQ(dropped.plan.parallel.dispatcher, std::nullopt);
  EXPECT_EQ(recompute_name(dropped.plan), "mla_up_proj");
  const LedgerRow other = row_of("p1318");  // Qwen3-30B
  EXPECT_EQ(other.plan.parallel.dispatcher, std::nullopt);
  EXPECT_EQ(other.plan.recompute, Recompute::kNone);
  EXPECT_EQ(row_of("p1158").plan.parallel.dispatcher, Dispatcher::kHybridEp) << "says so";
  // DeepEP does not run across the trays of an NVL72 rack.
  EXPECT_EQ(row_of("p1337").plan.parallel.dispatcher, Dispatcher::kHybridEp);
  EXPECT_EQ(row_of("p1340").plan.parallel.dispatcher, Dispatcher::kHybridEp) << "Qwen3-235B";
  EXPECT_EQ(row_of("p1338").plan.parallel.dispatcher, std::nullopt) << "GPT-OSS-120B";
}

TEST(LedgerParallel, RowsWithWordsOfLaterVersionsSaySoAndLeaveTheOthers) {
  const std::string known = table_of("p1074");
  const std::vector<std::pair<std::string, std::string>> words = {
      {"pp_schedule", "interleaved"}, {"attention", "flash"}, {"mlp", "swiglu"}, {"outcome", "ok"}};
  for (const auto& [column, word] : words) {
    std::string text = known;
    const std::size_t at = text.find("," + word + ",", text.find('\n'));
    ASSERT_NE(at, std::string::npos) << column;
    text.replace(at, word.size() + 2, ",backwards,");
    const std::vector<LedgerRow> rows = read_ledger(CsvTable::parse(text, "rows.csv"));
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows.front().unsupported, column + " is backwards, which is not known");
  }
}

TEST(LedgerParallel, OneChunkAStageIsNotInterleaved) {
  const LedgerRow row = row_of("p1140");  // interleaved, but how many chunks is not published
  EXPECT_EQ(row.unsupported, "");
  EXPECT_EQ(row.plan.parallel.schedule(), PipelineKind::kOneForwardOneBackward);
  EXPECT_EQ(row_of("p1074").plan.parallel.schedule(), PipelineKind::kInterleaved);
}

}  // namespace

// What a row of a ledger trained: every weight, or adapters of a rank over frozen ones.

namespace {

/// The first LoRA row of the shipped strangers, with `was` replaced, and more columns behind it.
LedgerRow changed(const std::string& was, const std::string& is, const std::string& columns = "",
                  const std::string& values = "") {
  const std::string text = read_file(data_dir() / "published" / "strangers_lora.csv", 1 << 20);
  const std::size_t header_end = text.find('\n'), row_end = text.find('\n', header_end + 1);
  std::string row = text.substr(header_end, row_end - header_end);
  const std::size_t at = row.find(was);
  EXPECT_NE(at, std::string::npos) << was;
  row.replace(at, was.size(), is);
  return read_ledger(CsvTable::parse(text.substr(0, header_end) + columns + row + values + "\n",
                                     "strangers_lora.csv"))
      .front();
}

TEST(LedgerTask, ShippedStrangersTrainAdaptersWhereTheySay) {
  std::size_t adapters = 0;
  for (const LedgerRow& row : load_strangers()) {
    EXPECT_EQ(row.unsupported, "") << row.id;
    adapters += row.plan.numerics.lora == 16;
    EXPECT_TRUE(row.plan.numerics.lora == 0 || row.plan.numerics.lora == 16) << row.id;
  }
  EXPECT_EQ(load_strangers().size(), 32U);
  EXPECT_EQ(adapters, 6U);
}

TEST(LedgerTask, RanksStandInAColumnOrInTheNotes) {
  EXPECT_EQ(changed("LoRA dim 16", "LoRA dim 8").plan.numerics.lora, 8);
  EXPECT_EQ(changed("LoRA dim 16", "LoRA").plan.numerics.lora, 16) << "the usual rank";
  EXPECT_EQ(changed("LoRA dim 16", "LoRA dim 8", ",lora_rank", ",64").plan.numerics.lora, 64);
  EXPECT_THROW(changed("lora", "lora", ",lora_rank", ",0"), Error);
  EXPECT_THROW(changed("lora", "lora", ",lora_rank", ",many"), Error);
}

TEST(LedgerTask, MatricesStandInAColumnOrInTheNotes) {
  const std::string notes = "LoRA dim 16 on all projections";
  EXPECT_EQ(changed(notes, notes).adapted, "all");
  EXPECT_EQ(changed(notes, "LoRA dim 16 on linear_qkv").adapted, "qkv");
  EXPECT_EQ(changed(notes, "LoRA dim 16: linear_qkv linear_proj").adapted, "attention");
  EXPECT_EQ(changed(notes, "LoRA dim 16").adapted, "") << "as the software does";
  const LedgerRow row = changed(notes, notes, ",lora_modules", ",qkv");
  EXPECT_EQ(row.adapted, "qkv");
  EXPECT_EQ(stack_of(row).stack.parallel.adapted, "qkv");
  EXPECT_EQ(changed(notes, notes, ",lora_modules", ",mlp").unsupported,
            "lora_modules is mlp, which is not known");
}

TEST(LedgerTask, TasksAreThoseOfTheCommandLine) {
  EXPECT_EQ(changed(",lora,", ",sft,").plan.numerics.lora, 0);
  EXPECT_EQ(changed(",lora,", ",qlora,").plan.numerics.quantize, Quantize::kNf4);
  EXPECT_EQ(changed(",lora,", ",qlora,", ",quantize", ",int8").plan.numerics.quantize,
            Quantize::kInt8);
  EXPECT_EQ(changed(",lora,", ",dpo,").unsupported, "task is dpo, which is not known");
  EXPECT_EQ(changed(",lora,", ",qlora,", ",quantize", ",int3").unsupported,
            "quantize is int3, which is not known");
}

}  // namespace

// Guards profiles/ledger/ledger_profile.h and stack_of: what a row's circumstances and the name of
// its software make of its profile.

namespace {

using ::testing::HasSubstr;
using testing::refusal_of;

TEST(RowCircumstances, CappedBoardsLowerClocks) {
  LedgerRow row = published_run("b200", "NeMo 26.06");
  const Profile whole = profile_of(row);
  row.power_limit_w = 750;
  const Profile capped = profile_of(row);
  const double clocks =
      capped.cost.gemm.values.sustained_factor / whole.cost.gemm.values.sustained_factor;
  EXPECT_GT(clocks, 0.8);
  EXPECT_LT(clocks, 0.9);
  EXPECT_NEAR(capped.attention().forward_flops, clocks * whole.attention().forward_flops,
              1e-6 * whole.attention().forward_flops);
  EXPECT_EQ(profile_of(row, {"cost.gemm.sustained_factor=0.7"}).cost.gemm.values.sustained_factor,
            0.7);
  EXPECT_NE(machine_key(row), machine_key(published_run("b200", "NeMo 26.06")));
  row.power_limit_w = 1200;
  EXPECT_THAT(refusal_of([&] { profile_of(row); }), HasSubstr("1000, the board power of b200"));
}

TEST(RowSoftware, NamesOfSoftwareAndLaterReleasesHaveTheirPresets) {
  LedgerRow row = published_run("gb200", "NeMo 26.10");
  EXPECT_EQ(stack_of(row).stack.id, "megatron-core-nemo-26.06") << "what came with 26.06 stays";
  row.software = "NeMo 26.04.01";
  EXPECT_EQ(stack_of(row).stack.id, "megatron-core-nemo");
  row.software = "Megatron-LM 2026-08";
  EXPECT_EQ(stack_of(row).stack.id, "megatron-core");
  row.software = "";
  EXPECT_EQ(stack_of(row).stack.id, "megatron-core");
  row.stack_called = "megatron-bridge";
  EXPECT_EQ(stack_of(row).stack.id, "megatron-core-nemo") << "as its recipes set it";
}

}  // namespace

// Guards profiles/ledger/ledger_profile.h: older releases reach less of a young GPU's products in
// few bits.

namespace {

double fp8_share(const LedgerRow& row, const std::vector<std::string>& overrides = {}) {
  return profile_of(row, overrides).cost.low_precision.values.fp8_share;
}

TEST(SoftwareAge, OlderReleasesReachLessOfAYoungGpu) {
  const double newest = fp8_share(published_run("gb200", "NeMo 26.06"));
  const double older = fp8_share(published_run("gb200", "NeMo 25.09"));
  const double lost = software_age().lost_a_month;
  EXPECT_GT(lost, 0);
  EXPECT_NEAR(older, newest * (1 - 9 * lost), 1e-12);
  EXPECT_EQ(fp8_share(published_run("gb200", "NeMo 27.01")), newest) << "nothing grows unseen";
  EXPECT_EQ(fp8_share(published_run("gb200", "NeMo 24.09")),
            fp8_share(published_run("gb200", "NeMo 25.04")))
      << "nor is anything lost before the oldest that was seen";
  EXPECT_EQ(fp8_share(published_run("gb200", "")), newest) << "no month is today";
}

TEST(SoftwareAge, GrownGpusHaveNoAge) {
  EXPECT_EQ(fp8_share(published_run("h100-80g", "NeMo 25.09")),
            fp8_share(published_run("h100-80g", "NeMo 26.06")));
}

TEST(SoftwareAge, ReleasesWithoutAMonthAreKnownByTheirStack) {
  LedgerRow row = published_run("gb200", "5.0");
  row.plan.stack = "nemo-mlperf";
  EXPECT_NEAR(software_age().kept(row), 1 - 14 * software_age().lost_a_month, 1e-12);
  row.software = "7.0";
  EXPECT_EQ(software_age().kept(row), 1);
}

TEST(SoftwareAge, OverridesWin) {
  EXPECT_EQ(fp8_share(published_run("gb200", "NeMo 25.09"), {"cost.low_precision.fp8_share=0.5"}),
            0.5);
}

}  // namespace

}  // namespace shardwright::profiles
