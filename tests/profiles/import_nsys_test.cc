// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <random>

#include "profiles/import/import_observations.h"
#include "profiles/import/trace_tables.h"
#include "sim/core/base/error.h"
#include "tests/profiles/kineto_text.h"
#include "tests/support/not_empty.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

#if __has_include(<sqlite3.h>) && defined(SHARDWRIGHT_HAS_SQLITE)
#include <sqlite3.h>

namespace shardwright::profiles {
namespace {

/// The tables and columns of an export that are read; a run of emit_nvtx(record_shapes=True).
std::filesystem::path write_export(const std::filesystem::path& path, const char* more = "") {
  sqlite3* database = nullptr;
  sqlite3_open(path.c_str(), &database);
  const std::string script = std::string(R"(
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
      streamId INTEGER, correlationId INTEGER, demangledName INTEGER, shortName INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
      correlationId INTEGER, nameId INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,
      streamId INTEGER, correlationId INTEGER, bytes INTEGER, copyKind INTEGER);
    CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, globalTid INTEGER, text TEXT, textId INTEGER);
    INSERT INTO StringIds VALUES (1, 'sm90_xmma_gemm_bf16'), (2, 'cudaLaunchKernel'),
      (3, 'aten::mm, seq = 4, op_id = 9, sizes = [[4096, 512], [512, 64]]');
    INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200'), (1, 'NVIDIA H200');
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 9000, 0, 7, 55, 1, 1), (9, 3, 0, 7, 1, 1, 1);
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1100, 1200, 281479271677952, 55, 2),
      (9100, 9200, 281479271677952, 56, 2);
    INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (9500, 9900, 0, 7, 56, 4096, 8);
    INSERT INTO NVTX_EVENTS VALUES (1000, 1500, 281479271677952, NULL, 3), (5, NULL, 0, 'mark', NULL);
  )") + more;
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(database, script.c_str(), nullptr, nullptr, &error), SQLITE_OK)
      << (error != nullptr ? error : "");
  sqlite3_close(database);
  return path;
}

TEST(ImportNsys, KernelsJoinOperatorsOfNvtxRanges) {
  const testing::TempFolder folder;
  const ObservationSet set = import_observations({write_export(folder.path() / "run.sqlite")});
  ASSERT_EQ(set.observations.size(), 2U);
  const Observation& copy = set.observations[0];
  EXPECT_EQ(copy.work.kind, WorkKind::kMemory);
  EXPECT_EQ(copy.work.bytes, 8192);
  const Observation& product = set.observations[1];
  EXPECT_EQ(product.work.kind, WorkKind::kGemm);
  EXPECT_EQ(product.work.m, 4096);
  EXPECT_EQ(product.work.n, 64);
  EXPECT_EQ(product.work.k, 512);
  EXPECT_NEAR(product.seconds, 7e-6, 1e-12);
  EXPECT_EQ(set.sources[0].gpu, "NVIDIA H200");
  EXPECT_EQ(set.left_out.at(0).what, "events of negative duration");
}

/// Two ranks of one job: both launch with the correlation id 55, each its own product.
std::string second_process() {
  return R"(
    ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN globalPid INTEGER;
    ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN globalPid INTEGER;
    UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = 281479271677952;
    UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET globalPid = 281479271677952;
    INSERT INTO StringIds VALUES (4, 'aten::mm, seq = 4, op_id = 9, sizes = [[128, 256], [256, 64]]');
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 3000, 1, 7, 55, 1, 1, 281479288455168);
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1150, 1250, 281479288455169, 55, 2);
    INSERT INTO NVTX_EVENTS VALUES (1000, 1500, 281479288455169, NULL, 4);
  )";
}

TEST(ImportNsys, CorrelationIdsAreThoseOfTheirProcess) {
  const testing::TempFolder folder;
  const ObservationSet set =
      import_observations({write_export(folder.path() / "two.sqlite", second_process().c_str())});
  ASSERT_EQ(set.observations.size(), 3U);
  for (const Observation& seen : set.observations) {
    if (seen.work.kind != WorkKind::kGemm) continue;
    EXPECT_NEAR(seen.seconds, seen.work.m == 4096 ? 7e-6 : 1e-6, 1e-12) << seen.work.m;
  }
  EXPECT_THAT(set.notes, ::testing::Each(::testing::Not(::testing::HasSubstr("share their"))));
}

std::string refusal(const std::filesystem::path& path) {
  return testing::refusal_of([&] { import_observations({path}); });
}

TEST(ImportNsys, ADatabaseIsDataAndNoProgram) {
  const testing::TempFolder folder;
  const char* const without_end =
      "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x";
  const std::string view =
      std::string("DROP TABLE NVTX_EVENTS; CREATE VIEW NVTX_EVENTS AS ") + without_end +
      " AS start, x + 1 AS end, 1 AS globalTid, 'x' AS text, 1 AS textId FROM c;";
  EXPECT_THAT(refusal(write_export(folder.path() / "view.sqlite", view.c_str())),
              ::testing::HasSubstr("NVTX_EVENTS is computed"));
  EXPECT_THAT(refusal(write_export(folder.path() / "names.sqlite",
                                   "DROP TABLE StringIds; CREATE VIEW StringIds AS "
                                   "SELECT 1 AS id, 'a' AS value;")),
              ::testing::HasSubstr("StringIds is computed"));
  EXPECT_THAT(refusal(write_export(folder.path() / "virtual.sqlite",
                                   "DROP TABLE TARGET_INFO_GPU; CREATE VIRTUAL TABLE "
                                   "TARGET_INFO_GPU USING fts5(id, name);")),
              ::testing::HasSubstr("TARGET_INFO_GPU is computed"));
  EXPECT_THAT(refusal(write_export(folder.path() / "column.sqlite",
                                   "DROP TABLE TARGET_INFO_GPU; CREATE TABLE TARGET_INFO_GPU (id "
                                   "INTEGER, name TEXT AS (hex(zeroblob(400000))));")),
              ::testing::HasSubstr("TARGET_INFO_GPU is computed"));
  EXPECT_THAT(refusal(folder.path()), ::testing::HasSubstr("is a folder"));
}

TEST(ImportNsys, WorkIsBoundedByTheSizeOfTheFile) {
  const testing::TempFolder folder;
  // Every kernel matches every one of the names: 4 million rows of 20 bytes times 2000.
  const std::string many =
      "DROP TABLE StringIds; CREATE TABLE StringIds (id INTEGER, value TEXT);"
      "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 3000) "
      "INSERT INTO StringIds SELECT 1, 'k' FROM c;"
      "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 3000) "
      "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT 2, 1, 0, 7, 5, 1, 1 FROM c;";
  EXPECT_THAT(refusal(write_export(folder.path() / "product.sqlite", many.c_str())),
              ::testing::HasSubstr("takes more work to read"));
}

TEST(ImportNsys, DamagedDatabasesEndInAnErrorOrAPart) {
  const testing::TempFolder folder;
  std::ifstream in(write_export(folder.path() / "run.sqlite"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  std::mt19937 random(4);
  for (int i = 0; i < 60; ++i) {
    std::string bytes = whole;
    for (int edit = 0; edit < 40; ++edit) {
      bytes[16 + random() % (bytes.size() - 16)] = static_cast<char>(random());
    }
    const auto file = write_text(folder.path() / fmt::format("{}.sqlite", i), bytes);
    try {
      for (const Observation& seen : not_empty(import_observations({file}).observations)) {
        EXPECT_GT(seen.seconds, 0);
      }
    } catch (const Error&) {
    }
  }
}

TEST(ImportNsys, OtherDatabasesAreRefused) {
  const testing::TempFolder folder;
  const auto other =
      write_export(folder.path() / "other.sqlite", "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL;");
  EXPECT_THROW(import_observations({other}), Error);
  const auto renamed = write_export(folder.path() / "renamed.sqlite",
                                    "ALTER TABLE NVTX_EVENTS RENAME COLUMN textId TO id;");
  EXPECT_THROW(import_observations({renamed}), Error);
  const auto broken =
      write_text(folder.path() / "broken.sqlite", std::string("SQLite format 3\0abc", 19));
  EXPECT_THROW(import_observations({broken}), Error);
}

}  // namespace
}  // namespace shardwright::profiles

#else

namespace shardwright::profiles {

TEST(ImportNsys, WithoutSqliteItSaysWhatToInstall) {
  const testing::TempFolder folder;
  const auto file = write_text(folder.path() / "run.sqlite", std::string("SQLite format 3\0", 16));
  EXPECT_THAT(testing::refusal_of([&] { import_observations({file}); }, ExitCode::kMissingDevice),
              ::testing::HasSubstr("libsqlite3-dev"));
}

}  // namespace shardwright::profiles

#endif
