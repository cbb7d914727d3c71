// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

json component(const json& document, const std::string& key) {
  for (const json& entry : document.at("components")) {
    if (entry.at("key") == key) return entry;
  }
  ADD_FAILURE() << "no component " << key;
  return {};
}

json doctor_json(const std::vector<std::string>& environment = {}) {
  const ProgramResult result = run_program({SHARDWRIGHT_BINARY, "doctor", "--json"}, environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return json::parse(result.out);
}

TEST(Doctor, JsonSaysWhatIsThereAndWhatThatAllows) {
  const json document = doctor_json();
  EXPECT_EQ(document.at("schema"), "shardwright.doctor/1.0");
  EXPECT_GE(document.at("machine").at("cores").get<int>(), 1);
  EXPECT_GT(document.at("machine").at("memory_bytes").get<std::int64_t>(), 1 << 20);
  for (const char* key : {"cuda_driver", "gpu", "cuda_toolkit", "cublas_lt", "nccl", "cupti",
                          "cudnn", "nvrtc", "mpi"}) {
    EXPECT_NE(component(document, key).at("detail"), "") << key;
  }
  EXPECT_EQ(component(document, "gpu").at("present").get<bool>(), !document.at("gpus").empty());
  for (const json& capability : not_empty(document.at("capabilities"))) {
    EXPECT_EQ(capability.at("available").get<bool>(), capability.at("reason").is_null())
        << capability;
  }
}

TEST(Doctor, FindsNoProgramsOnAnEmptyPath) {
  const json document = doctor_json({"PATH=/nonexistent", "CUDA_HOME", "CUDA_PATH"});
  EXPECT_FALSE(component(document, "cmake").at("present").get<bool>());
  EXPECT_THAT(component(document, "cmake").at("detail").get<std::string>(), HasSubstr("PATH"));
}

// A toolkit is a folder with include/cuda.h and bin/nvcc; its version is the header's.
TEST(Doctor, ReadsTheToolkitThatCudaHomeNames) {
  const std::filesystem::path root =
      shardwright::testing::temp_folder() / ("doctor_toolkit" + std::to_string(getpid()));
  std::filesystem::create_directories(root / "include");
  std::filesystem::create_directories(root / "bin");
  std::ofstream(root / "include/cuda.h") << "#pragma once\n#define CUDA_VERSION 12040\n";
  std::ofstream(root / "bin/nvcc") << "";
  const json toolkit = component(doctor_json({"CUDA_HOME=" + root.string()}), "cuda_toolkit");
  EXPECT_TRUE(toolkit.at("present").get<bool>());
  EXPECT_EQ(toolkit.at("version"), "12.4");
  EXPECT_EQ(toolkit.at("detail"), root.string());
  std::filesystem::remove_all(root);
}

// A library that is no library must be reported, never crash the doctor.
TEST(Doctor, SurvivesABrokenDriverLibrary) {
  const std::filesystem::path folder =
      shardwright::testing::temp_folder() / ("doctor_broken" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libcuda.so.1") << "this is no ELF file";
  const json document = doctor_json({"LD_LIBRARY_PATH=" + folder.string()});
  EXPECT_FALSE(component(document, "cuda_driver").at("present").get<bool>());
  EXPECT_THAT(component(document, "cuda_driver").at("detail").get<std::string>(),
              HasSubstr("libcuda.so.1"));
  EXPECT_EQ(component(document, "gpu").at("detail"), "no driver to ask");
  std::filesystem::remove_all(folder);
}

// It is the tool for the case: what is missing is a row, never the end. An empty file of a
// library's name stands before the others; only what a toolkit's folder brings besides is found all
// the same.
TEST(Doctor, SurvivesAnyOneLibraryThatCannotBeLoaded) {
  const std::filesystem::path folder =
      shardwright::testing::temp_folder() / ("doctor_hidden" + std::to_string(getpid()));
  for (const auto& [key, name] :
       {std::pair{"nccl", "libnccl.so.2"}, std::pair{"cupti", "libcupti.so.13"},
        std::pair{"cudnn", "libcudnn.so.9"}, std::pair{"nvrtc", "libnvrtc.so.13"},
        std::pair{"cublas_lt", "libcublasLt.so.13"}}) {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / name) << "";
    const json found =
        component(doctor_json({"LD_LIBRARY_PATH=" + folder.string(), "CUDA_HOME"}), key);
    const std::string file = name;
    EXPECT_THAT(found.at("detail").get<std::string>(), HasSubstr(file.substr(0, file.rfind('.'))));
    std::filesystem::remove_all(folder);
  }
}

const std::string kFakeDriver = std::string("LD_LIBRARY_PATH=") + SHARDWRIGHT_FAKE_DRIVER;

TEST(Doctor, AsksTheDriverForItsGpus) {
  const json document = doctor_json({kFakeDriver});
  EXPECT_EQ(component(document, "cuda_driver").at("version"), "for CUDA 12.4");
  EXPECT_EQ(component(document, "gpu").at("detail"), "2 x NVIDIA Test GPU");
  ASSERT_EQ(document.at("gpus").size(), 2U);
  const json& gpu = document.at("gpus")[1];
  EXPECT_EQ(gpu.at("name"), "NVIDIA Test GPU");
  EXPECT_EQ(gpu.at("memory_bytes").get<std::int64_t>(), std::int64_t{80} << 30);
  EXPECT_EQ(gpu.at("compute_capability"), "9.0");
  EXPECT_EQ(gpu.at("multiprocessors"), 132);
}

TEST(Doctor, SaysWhetherGpusReadEachOther) {
  EXPECT_EQ(doctor_json({kFakeDriver}).at("peer_access"), true);
  EXPECT_EQ(doctor_json({kFakeDriver, "FAKE_CUDA=no_peers"}).at("peer_access"), false);
  EXPECT_TRUE(doctor_json({kFakeDriver, "FAKE_CUDA=no_device"}).at("peer_access").is_null());
}

TEST(Doctor, TheToolkitsStubIsNoDriver) {
  const json document = doctor_json({kFakeDriver, "FAKE_CUDA=stub"});
  EXPECT_FALSE(component(document, "cuda_driver").at("present").get<bool>());
  EXPECT_THAT(component(document, "cuda_driver").at("detail").get<std::string>(),
              HasSubstr("stub"));
  EXPECT_EQ(component(document, "gpu").at("detail"), "no driver to ask");
}

TEST(Doctor, ADriverWithoutAGpuSaysWhy) {
  const json document = doctor_json({kFakeDriver, "FAKE_CUDA=no_device"});
  EXPECT_TRUE(component(document, "cuda_driver").at("present").get<bool>());
  EXPECT_FALSE(component(document, "gpu").at("present").get<bool>());
  EXPECT_EQ(component(document, "gpu").at("detail"),
            "the driver says: no CUDA-capable device is detected (code 100)");
  EXPECT_EQ(component(doctor_json({kFakeDriver, "FAKE_CUDA=not_ready"}), "gpu").at("detail"),
            "the driver says: system not yet initialized (code 802): GPUs behind NVSwitches wait "
            "for the fabric manager; start it with 'sudo systemctl start nvidia-fabricmanager'");
}

TEST(Doctor, LimitsOfAContainerAreRows) {
  const json document = doctor_json();
  for (const char* key : {"shared_memory", "locked_memory"}) {
    const json& limit = component(document, key);
    EXPECT_EQ(limit.at("present").get<bool>(), limit.at("detail") == "") << limit;
  }
}

TEST(Doctor, TextFitsAndIsPlainAsciiInTheCLocale) {
  const ProgramResult result = run_program({SHARDWRIGHT_BINARY, "doctor"}, {"LC_ALL=C"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("What that allows"));
  std::size_t column = 0;
  for (const char c : result.out) {
    EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
    column = c == '\n' ? 0 : column + 1;
    EXPECT_LE(column, 100U);
  }
}

}  // namespace
}  // namespace shardwright::cli
