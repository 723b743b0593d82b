// Compares a run in progress with another run, again and again: what `statctl diff` says of the
// steps that all ranks of both runs have completed. It never waits for the other run: steps that it
// lacks are reported as not compared.
#ifndef STATCOLLECT_CLIENT_COMMANDS_AGREEMENT_H_
#define STATCOLLECT_CLIENT_COMMANDS_AGREEMENT_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "client/rpc/collector.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

// Not thread-safe.
class Agreement {
 public:
  // `patience`: maximum time of a query about all steps. If one takes longer, later looks query
  // only the new steps, and all steps again when the new ones are worse or the run has ended.
  Agreement(Collector& collector, std::string run, std::string against,
            std::chrono::milliseconds patience)
      : collector_(collector),
        run_(std::move(run)),
        against_(std::move(against)),
        patience_(patience) {}

  void Update(const v1::GetRunResponse& run);

  // "steps 0..29 against base: diverged; root so far: step 1, ..."
  std::string Text() const;
  nlohmann::ordered_json Json() const;
  bool diverged() const { return verdict_ == v1::VERDICT_DIVERGED; }

 private:
  bool AskBoth(const v1::GetRunResponse& run);  // false: nothing can be compared
  void Compare(bool over, bool known);
  std::string NotComparedText() const;
  Result<v1::DiffReport> AskSteps(std::uint64_t first, std::uint64_t last);
  void Note(const v1::DiffReport& report);

  Collector& collector_;
  const std::string run_, against_;
  const std::chrono::milliseconds patience_;
  std::optional<std::uint64_t> step_;          // compared last
  std::optional<std::uint64_t> wanted_, own_;  // that both runs have left behind; that the run has
  std::string other_state_;                    // "running", "finished", "interrupted"
  bool all_asked_ = false;                     // the last question was about all steps
  v1::Verdict verdict_ = v1::VERDICT_UNSPECIFIED;
  std::uint32_t attempts_ = 0,
                asked_attempts_ = 0;            // of both runs, now and when they were compared
  std::chrono::steady_clock::duration cost_{};  // of the last question about all steps
  std::optional<v1::Divergence> first_;         // above its tolerance
  std::optional<v1::Root> root_;
  std::string where_;  // place of the root, otherwise of the first divergence
  std::string explained_;
  std::string trouble_;  // why nothing was compared
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_AGREEMENT_H_
