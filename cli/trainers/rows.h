// SPDX-License-Identifier: Apache-2.0
// A trainer as one table, both ways: a row is a setting of its files, with its keys, the knob that
// it is or why it is none, its default, and what is written there for a plan.
//
// Reading walks the rows in their order; writing puts those that are at() a line in the order of
// their lines. A setting is added as one row. What follows from several settings is a row of code,
// which takes them itself. Keys, and lists of them, have blanks between them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "cli/config/imported.h"
#include "cli/export/settings.h"

namespace shardwright::cli {

enum class TrainerSharding : std::uint8_t { kNone, kDdp, kZero, kFsdp1, kFsdp2 };

/// What settings are written of.
struct Told {
  const sim::Job& inputs;
  const Plan& plan;  // as it was made
  const Plan& run;   // as the trainer will follow it
  Ranks ranks{};
  TrainerSharding sharding = TrainerSharding::kNone;
  bool checkpoints = false;  // every layer
};

/// Where a row is written.
struct When {
  static bool single(const Told& t) { return t.sharding == TrainerSharding::kNone; }
  static bool ddp(const Told& t) { return t.sharding == TrainerSharding::kDdp; }
  static bool zero(const Told& t) { return t.sharding == TrainerSharding::kZero; }
  static bool fsdp1(const Told& t) { return t.sharding == TrainerSharding::kFsdp1; }
  static bool fsdp2(const Told& t) { return t.sharding == TrainerSharding::kFsdp2; }
  static bool fsdp(const Told& t) { return fsdp1(t) || fsdp2(t); }
  static bool hybrid(const Told& t) { return fsdp(t) && info_of(t.run.strategy).hybrid; }
  static bool one_copy(const Told& t) { return fsdp(t) && !hybrid(t); }
  static bool reshards(const Told& t) { return info_of(t.run.strategy).reshards; }
  static bool checkpoints(const Told& t) { return t.checkpoints; }
  static bool bf16(const Told& t) { return t.run.param_dtype == DType::kBf16; }
  static bool flash(const Told& t) { return t.run.attention == AttentionKind::kFlash; }
  static bool compiles(const Told& t) { return t.run.stack == "torch-compile"; }
  static bool chunks_loss(const Told& t) { return t.run.loss_chunks > 1; }
  static bool adamw_8bit(const Told& t) {
    return t.run.numerics.optimizer == Optimizer::kAdamw8bit;
  }
  static bool adapters(const Told& t) { return t.run.numerics.lora > 0; }
  static bool nf4(const Told& t) { return t.run.numerics.quantize == Quantize::kNf4; }
  static bool int8(const Told& t) { return t.run.numerics.quantize == Quantize::kInt8; }
};

/// What is written in rows of several trainers.
struct Write {
  static YamlSource number(std::int64_t value) { return YamlSource::format("{}", value); }
  static YamlSource on(bool value) { return value ? "true" : "false"; }
  static YamlSource model(const Told& t) { return string_literal(t.inputs.model_name); }
  static YamlSource layer_class(const Told& t);
  static YamlSource reshards(const Told& t) { return on(When::reshards(t)); }
  static YamlSource checkpoints(const Told& t) { return on(t.checkpoints); }
  static YamlSource adapter_rank(const Told& t) { return number(t.run.numerics.lora); }
  static YamlSource adapter_alpha(const Told& t) { return number(2 * t.run.numerics.lora); }
  static YamlSource replicas(const Told& t) { return number(t.ranks.replicate); }
  static YamlSource ranks_of_replica(const Told& t) { return number(t.ranks.shard); }
};

struct Row {
  using Text = std::string_view;
  using Take = void (*)(SettingBox& box, ImportedConfig& to);
  using Condition = bool (*)(const Told& told);
  using Value = YamlSource (*)(const Told& told);
  enum class Kind : std::uint8_t {
    kKnob,
    kDegree,
    kSwitch,
    kModel,
    kOptimizer,
    kCopies,
    kPacking,
    kLeft,
    kRefused,
    kFree,
    kSections,
    kCode
  };

  Text keys;  // the first of them that is there is read, the first of all is written
  Kind kind = Kind::kCode;
  Text knob{}, usual{}, remark{};
  Take take = nullptr;
  int line = 0;  // of a written file; 0: it is not written
  Condition only = nullptr;
  const char *words = "", *otherwise = "";
  Value value = nullptr;  // written where there are no words; none: the knob's own value

  /// A knob of plan_knobs.h. Where it is not said it is `usual`, which is `remark`: "axolotl's
  /// default"; without one the remark says what then holds.
  static constexpr Row of_knob(Text keys, Text knob, Text usual = {}, Text remark = {}) {
    return {keys, Kind::kKnob, knob, usual, remark};
  }
  /// Ranks, which are a knob where there are several.
  static constexpr Row degree(Text keys, Text knob) { return {keys, Kind::kDegree, knob}; }
  /// A switch that sets a knob where it is on.
  static constexpr Row sets(Text keys, Text knob, Text to) {
    return {keys, Kind::kSwitch, knob, to};
  }
  static constexpr Row model(Text keys) { return {keys, Kind::kModel}; }
  /// A name for take_optimizer_word.
  static constexpr Row optimizer(Text key) { return {key, Kind::kOptimizer}; }
  /// Copies of the parameters, which make FSDP2 hybrid.
  static constexpr Row copies(Text keys) { return {keys, Kind::kCopies}; }
  /// Switches of which one that is on fills sequences, whose length the key `length` says.
  static constexpr Row packing(Text keys, Text length) {
    return {keys, Kind::kPacking, {}, length};
  }
  /// What no plan says, and why it is left out.
  static constexpr Row left(Text keys, Text why) { return {keys, Kind::kLeft, {}, {}, why}; }
  /// What makes another training of it: nothing but false is accepted of each key.
  static constexpr Row refused(Text keys, Text accepted) {
    return {keys, Kind::kRefused, {}, {}, accepted};
  }
  /// Keys that cost nothing, each behind `section`: "fsdp_config.".
  static constexpr Row free(Text keys, Text section = {}) {
    return {keys, Kind::kFree, {}, section};
  }
  /// The same with all that is below them.
  static constexpr Row sections(Text keys) { return {keys, Kind::kSections}; }
  static constexpr Row code(Take take, Text key = {}, Text knob = {}) {
    return {key, Kind::kCode, knob, {}, {}, take};
  }
  /// What other rows read, or what costs nothing in any trainer.
  static constexpr Row written(Text key, Text knob = {}) { return {key, Kind::kCode, knob}; }

  constexpr Row at(int place, Condition where = nullptr) const {
    Row row = *this;
    row.line = place;
    row.only = where;
    return row;
  }
  constexpr Row at(int place, Value of_plan, Condition where = nullptr) const {
    Row row = at(place, where);
    row.value = of_plan;
    return row;
  }
  constexpr Row at(int place, const char* then, Condition where = nullptr,
                   const char* else_words = "") const {
    Row row = at(place, where);
    row.words = then;
    row.otherwise = else_words;
    return row;
  }
  /// A switch.
  constexpr Row on(int place, Condition is_on) const { return at(place, "true", is_on, "false"); }
};

void read_rows(std::span<const Row> rows, SettingBox& box, ImportedConfig& to);
/// Dotted keys are indented below their section. What is empty is not written.
YamlSource yaml_of(std::span<const Row> rows, const Told& told);
/// The same, where values that are no JSON are words.
JsonSource json_of(std::span<const Row> rows, const Told& told);

}  // namespace shardwright::cli
