// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/ledger.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "profiles/data_file.h"
#include "sim/core/base/error.h"
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
}  // namespace shardwright::profiles
