#include "cli/verbs/verbs.h"

namespace shardwright::cli {

std::vector<std::unique_ptr<Verb>> make_verbs() {
  std::vector<std::unique_ptr<Verb>> verbs;
  verbs.push_back(make_predict_verb());
  verbs.push_back(make_tune_verb());
  verbs.push_back(make_size_verb());
  verbs.push_back(make_run_verb());
  verbs.push_back(make_compare_verb());
  verbs.push_back(make_measure_verb());
  verbs.push_back(make_calibrate_verb());
  verbs.push_back(make_validate_verb());
  verbs.push_back(make_profile_verb());
  verbs.push_back(make_inspect_verb());
  verbs.push_back(make_export_verb());
  verbs.push_back(make_report_verb());
  verbs.push_back(make_doctor_verb());
  return verbs;
}

}  // namespace shardwright::cli
