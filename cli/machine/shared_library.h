// SPDX-License-Identifier: Apache-2.0
// A library opened at run time because the machine may not have it.
//
// It is never unloaded: CUDA's and MPI's libraries register handlers that run when the process
// ends.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace shardwright::cli {

class SharedLibrary {
 public:
  /// Opens the first of `names` that opens, by the loader's rules, then in each of `folders`.
  SharedLibrary(const std::vector<std::string>& names,
                const std::vector<std::filesystem::path>& folders = {});

  bool opened() const { return handle_ != nullptr; }
  /// Where it lies; empty when it was not opened.
  std::string path() const;
  /// Why it was not opened: what the loader said about the first name.
  const std::string& problem() const { return problem_; }

  /// Why a part of it, a library of that name beside it or where the loader looks, cannot be
  /// opened; empty when it can.
  std::string why_without(const std::string& part) const;

  /// The function of that name, or nullptr. `Function` is its type, such as int(int*).
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  void* handle_ = nullptr;
  std::string problem_;
};

}  // namespace shardwright::cli
