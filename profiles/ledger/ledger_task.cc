// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/ledger_task.h"

#include <algorithm>
#include <string_view>

#include "profiles/ledger/ledger_parallel.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/parallelism.h"

namespace shardwright::profiles {
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
  if (!out.adapted.empty() && !parallel_word<Adapted>(out.adapted)) {
    out.unsupported = unknown_word("lora_modules", out.adapted);
    out.adapted.clear();
  }
  const std::string_view quantize = text_of(row, table, "quantize");
  if (quantize.empty()) {
    numerics.quantize = task == "qlora" ? Quantize::kNf4 : Quantize::kNone;
  } else if (const auto kept = parallel_word<Quantize>(quantize)) {
    numerics.quantize = *kept;
  } else {
    out.unsupported = unknown_word("quantize", quantize);
  }
}

}  // namespace shardwright::profiles
