// SPDX-License-Identifier: Apache-2.0
#include "profiles/edit_value.h"

#include <gtest/gtest.h>

#include "profiles/cluster_file.h"
#include "profiles/data_dir.h"
#include "profiles/data_file.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "tests/support/files.h"
#include "tests/support/not_empty.h"

namespace shardwright::profiles {
namespace {

using testing::get;

const Origin kOrigin{"a \"quoted\" source", "inferred", "2026-01-03"};

// In every shipped stack and cluster: the value changes, its origin too, and nothing else.
TEST(EditValue, ChangesOneNumberOfAnyShippedFileAndNothingElse) {
  int edited = 0;
  const auto check = [&](const std::string& text, const std::string& name, auto parse,
                         auto struct_of) {
    auto before = parse(text);
    FieldList fields;
    describe(fields, struct_of(before));
    for (const Field& field : not_empty(fields.fields())) {
      const auto* number = std::get_if<double*>(&field.target);
      if (number == nullptr || !before.origins.contains(field.path)) continue;
      const bool is_rate = **number > 1e6;
      const bool is_share = field.accepted.min <= 0.25;
      const double value = is_rate     ? 2e6
                           : !is_share ? **number + 1
                                       : (**number == 0.5 ? 0.25 : 0.5);
      auto after = parse(with_value(text, name, field.path, value, kOrigin));
      EXPECT_EQ(after.origins.at(field.path).source, kOrigin.source) << name << field.path;
      EXPECT_EQ(after.origins.at(field.path).date, kOrigin.date);
      FieldList fields_after;
      describe(fields_after, struct_of(after));
      for (std::size_t i = 0; i < fields_after.fields().size(); ++i) {
        const Field &a = fields_after.fields()[i], &b = fields.fields()[i];
        if (a.path == field.path) {
          EXPECT_EQ(**std::get_if<double*>(&a.target), value) << name << " " << a.path;
        } else {
          EXPECT_EQ(json_text(a), json_text(b)) << name << " " << a.path;
        }
      }
      ++edited;
    }
  };
  for (const std::string& id : shipped_names(DataKind::kStack)) {
    const auto file = data_dir() / "stacks" / (id + ".json");
    // Most values of one that has a base stand in the base.
    if (get(file).find("\"base\":") != std::string::npos) continue;
    check(
        get(file), file.string(),
        [&](const std::string& text) { return parse_stack(text, file.string()); },
        [](StackFile& f) -> Stack& { return f.stack; });
  }
  for (const std::string id : {"a100-80g-4xhdr200", "dgx-h100"}) {
    const auto file = data_dir() / "clusters" / (id + ".json");
    check(
        get(file), file.string(),
        [&](const std::string& text) { return parse_cluster(text, file.string()); },
        [](ClusterFile& f) -> Cluster& { return f.cluster; });
  }
  EXPECT_GT(edited, 100);
}

TEST(EditValue, RefusesWhatIsNotOnALineOfItsOwn) {
  const std::string text =
      "{\n  \"a\": {\"value\": 1},\n  \"g\": {\n    \"b\": {\"value\": 2}\n  },\n"
      "  \"plain\": 3\n}\n";
  EXPECT_EQ(
      with_value(text, "f", "g.b", 4, {"s", "low", "2026"}),
      "{\n  \"a\": {\"value\": 1},\n  \"g\": {\n    \"b\": {\"value\": 4.0, \"source\": \"s\", "
      "\"confidence\": \"low\", \"date\": \"2026\"}\n  },\n  \"plain\": 3\n}\n");
  for (const char* path : {"b", "g", "g.a", "a.b", "plain", "none", "", "g.", ".b"}) {
    EXPECT_THROW(with_value(text, "f", path, 1, {}), Error) << path;
  }
  EXPECT_THROW(with_value("{\"a\": {\"value\": 1}}", "f", "a", 1, {}), Error);
  EXPECT_THROW(with_value("", "f", "a", 1, {}), Error);
}

}  // namespace
}  // namespace shardwright::profiles
