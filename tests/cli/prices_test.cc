// SPDX-License-Identifier: Apache-2.0

#include "cli/prices/catalog.h"
#include "profiles/prices/price.h"
#include "sim/core/base/csv.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

const std::string kCatalog = std::string(SHARDWRIGHT_TEST_DATA) + "/skypilot";

const Catalog& tables() {
  static const Catalog catalog = [] {
    const CatalogNames names = CatalogNames::load();
    Words paths;
    for (const char* cloud : {"aws", "gcp", "jarvislabs", "lambda", "mithril", "nebius", "oci",
                              "runpod", "shadeform", "slurm", "spheron", "vast", "verda", "yotta"})
      paths.push_back(kCatalog + "/" + cloud);
    return read_catalog(paths, names);
  }();
  return catalog;
}

const CatalogOffer* offer_at(const std::string& cloud, std::size_t last_line) {
  const auto& offers = tables().offers;
  const auto at = std::find_if(offers.begin(), offers.end(), [&](const CatalogOffer& offer) {
    return offer.cloud == cloud && offer.lines.back() == last_line;
  });
  return at == offers.end() ? nullptr : &*at;
}

void expect_price(const std::optional<double>& found, const std::optional<double>& expected,
                  const std::string& where) {
  ASSERT_EQ(found.has_value(), expected.has_value()) << where;
  EXPECT_NEAR(found.value_or(0), expected.value_or(0), 1e-5) << where;
}

TEST(Prices, ReadsEachRowAsAPersonDid) {
  const CsvTable expected = CsvTable::load(kCatalog + "/expected.csv");
  ASSERT_EQ(expected.size(), 30U);
  int read = 0, marked = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const CsvRow row = expected[i];
    const std::string lines(row.text("file_lines"));
    const auto last = std::stoul(lines.substr(lines.find('+') + 1));
    const std::string cloud(row.text("cloud")), where = cloud + " line " + lines;
    const CatalogOffer* offer = offer_at(cloud, last);
    const auto on_demand = row.find<double>("on_demand_usd_per_gpu_hour");
    const auto spot = row.find<double>("spot_usd_per_gpu_hour");
    const std::string reading(row.text("reading"));
    if ((!on_demand && !spot) || reading.find("skip it") != reading.npos) {
      EXPECT_EQ(offer, nullptr) << where;
      continue;
    }
    ASSERT_NE(offer, nullptr) << where;
    ++read;
    EXPECT_EQ(offer->instance, row.text("instance")) << where;
    EXPECT_EQ(offer->accelerator, row.text("accelerator")) << where;
    EXPECT_EQ(offer->count, row.require<std::int64_t>("count")) << where;
    expect_price(offer->on_demand, on_demand, where);
    expect_price(offer->spot, spot, where);
    if (reading.find("mark it") == reading.npos) continue;
    EXPECT_NE(offer->remark, "") << where;
    ++marked;
  }
  EXPECT_EQ(read, 25);
  EXPECT_EQ(marked, 4);
}

TEST(Prices, TellsCardsOfOneNameApart) {
  const auto gpu = [](const std::string& cloud, std::size_t line) {
    const CatalogOffer* offer = offer_at(cloud, line);
    return offer == nullptr ? std::string("none") : offer->gpu;
  };
  EXPECT_EQ(gpu("vast", 4), "h100-nvl");
  EXPECT_EQ(gpu("vast", 5), "h100-80g");
  EXPECT_EQ(gpu("vast", 6), "rtx-4090");
  EXPECT_EQ(gpu("vast", 7), "");  // 48 GB under the name of a card of 24
  EXPECT_EQ(gpu("vast", 8), "a100-40g");
  EXPECT_EQ(gpu("vast", 9), "a100-80g");
  EXPECT_EQ(gpu("vast", 10), "a100-pcie-80g");
  EXPECT_EQ(gpu("runpod", 2), "a100-pcie-80g");
  EXPECT_EQ(gpu("runpod", 4), "a100-80g");
  EXPECT_EQ(gpu("spheron", 2), "h100-80g");
}

TEST(Prices, CountsNoRegionTwiceAndNoCommitment) {
  const CatalogNames names = CatalogNames::load();
  const PriceTable table = price_table(tables(), names);
  const auto row = [](const std::vector<PriceRow>& rows, const std::string& name) {
    const auto at = std::find_if(rows.begin(), rows.end(),
                                 [&](const PriceRow& entry) { return entry.name == name; });
    return at == rows.end() ? PriceRow() : *at;
  };
  // us-south1 and asia-south2 are marked; what is left asks 11 USD.
  const PriceRow ultra = row(table.clusters, "a3-ultra");
  ASSERT_TRUE(ultra.on_demand);
  EXPECT_NEAR(ultra.on_demand->price.usd_per_gpu_hour, 11, 1e-5);
  const PriceRow p5 = row(table.clusters, "p5");
  ASSERT_TRUE(p5.on_demand && p5.spot);
  EXPECT_THAT(p5.on_demand->price.origin.source, HasSubstr("aws"));
  for (const PriceRow& entry : not_empty(table.clusters)) {
    for (const auto& price : {entry.on_demand, entry.spot}) {
      if (!price) continue;
      EXPECT_LE(price->price.range[0], price->price.usd_per_gpu_hour) << entry.name;
      EXPECT_GE(price->price.range[1], price->price.usd_per_gpu_hour) << entry.name;
      EXPECT_GT(price->price.range[0], 0.1) << entry.name;
      EXPECT_LT(price->price.range[1], 50) << entry.name;
    }
  }
}

ProgramResult import(const Words& flags) {
  return run_program(joined({SHARDWRIGHT_BINARY, "prices", "import"}, flags), {"LC_ALL=C"});
}

TEST(Prices, WhatImportWritesIsWhatSizeCharges) {
  const std::string out = temp_path("prices.json");
  expect_says(output_of(import({"--skypilot", kCatalog, "--date", "2026-11-01", "--out", out})),
              {"p5"});
  std::ifstream file(out);
  const json prices = json::parse(file);
  const double usd = prices.at("clusters").at("p5").at("spot").at("usd_per_gpu_hour");
  const auto sized = [&](const Words& more) {
    Words arguments = joined(
        {SHARDWRIGHT_BINARY, "size",         "--model",       "llama-3-8b", "--tokens",  "1e12",
         "--clusters",       "p5",           "--gpus",        "64",         "--seq-len", "4096",
         "--strategy",       "fsdp2",        "--micro-batch", "1",          "--prices",  out,
         "--json",           "--price-kind", "spot"},
        more);
    const ProgramResult result = run_program(arguments, {"LC_ALL=C"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  };
  const json never = sized({}), often = sized({"--preemption-hours", "24"});
  const json& option = never.at("options").at(0);
  EXPECT_NEAR(option.at("cost_usd").get<double>(), option.at("days").get<double>() * 24 * 64 * usd,
              1e-6 * option.at("cost_usd").get<double>());
  // Eight nodes, each taken once a day: a job of theirs is interrupted every three hours.
  EXPECT_GT(often.at("options").at(0).at("days").get<double>(),
            1.05 * option.at("days").get<double>());
  EXPECT_EQ(often.at("inputs").at("preemption_node_hours"), 24);
  EXPECT_TRUE(never.at("inputs").at("preemption_node_hours").is_null());
}

TEST(Prices, BadInputIsOneSentence) {
  expect_error(import({}), 2, "--skypilot is missing");
  expect_error(import({"--skypilot", "nowhere/vms.csv"}), 3, "nowhere/vms.csv");
  expect_error(import({"--skypilot", temp_folder().string() + "/empty-of-tables"}), 3,
               "empty-of-tables");
  const std::string head = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n";
  expect_error(import({"--skypilot", written("a/vms.csv", head + "x,H100,8,cheap,,r\n")}), 3,
               "line 2, column Price");
  expect_error(import({"--skypilot", written("b/vms.csv", head + "x,H100,8,-1,,r\n")}), 3,
               "from 0 to 1,000,000");
  expect_error(import({"--skypilot", written("c/vms.csv", "Name,Price\nx,1\n")}), 3,
               "InstanceType");
  expect_error(import({"--skypilot", written("d/vms.csv", head + "x,ABACUS,8,1,,r\n")}), 3,
               "holds no price of a GPU that ships");
  expect_error(import({"--skypilot", kCatalog, "--date", "yesterday"}), 3, "--date");
  expect_error(run_program({SHARDWRIGHT_BINARY, "prices", "export"}), 2, "no action 'export'");
}

TEST(Prices, AFileOfPricesNamesWhatIsWrong) {
  const auto message = [](const std::string& text) {
    return refusal_of([&] { profiles::load_price_file(written("file.json", text)); });
  };
  EXPECT_THAT(message("{}"), HasSubstr("schema"));
  const std::string head = R"({"schema":"shardwright.prices/1.0","clusters":{"p5":{"spot":)";
  EXPECT_THAT(message(head + R"({"usd_per_gpu_hour":0}}}})"), HasSubstr("clusters.p5.spot"));
  EXPECT_THAT(message(head + R"({"usd_per_gpu_hour":2,"range":[3,1]}}}})"), HasSubstr("rising"));
  EXPECT_THAT(message(head + R"({"usd":2}}}})"), HasSubstr("usd"));
}

}  // namespace
}  // namespace shardwright::cli
