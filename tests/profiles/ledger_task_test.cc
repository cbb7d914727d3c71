// SPDX-License-Identifier: Apache-2.0
// What a row of a ledger trained: every weight, or adapters of a rank over frozen ones.
#include "profiles/ledger/ledger_task.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "profiles/data_dir.h"
#include "sim/core/base/error.h"
#include "sim/core/base/read_file.h"

namespace shardwright::profiles {
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
}  // namespace shardwright::profiles
