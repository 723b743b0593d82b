#include "server/query/noise/noise_store.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>
#include <vector>

#include "common/loss_names.h"
#include "common/names.h"
#include "common/step_set.h"
#include "common/thread_annotations.h"
#include "server/query/noise/noise_profile.h"
#include "server/query/noise/noise_repeats.h"
#include "server/query/parallel.h"

namespace statcollect::query {
namespace {

constexpr std::size_t kStepsAWave = 64;

Result<std::optional<NoiseProfile>> Load(RecordReader& store, const std::string& run) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto stored, store.Document(run, kNoiseDocument));
  if (!stored) return std::optional<NoiseProfile>();
  STATCOLLECT_ASSIGN_OR_RETURN(auto profile, NoiseProfile::Decode(*stored));
  return std::optional(std::move(profile));
}

// Fills a profile from the noise of every step and rank.
class Measurement {
 public:
  Measurement(RunView& a, NoiseFloor& noise) : a_(a), noise_(noise), ranks_(a.AllRanks()) {}

  Result<NoiseProfile> Run(const OnProgress& progress, const std::stop_token& stop) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto steps, a_.Steps(StepSet()));
    const std::vector<std::pair<std::uint64_t, std::size_t>> all(steps.begin(), steps.end());
    Progress done{.done = 0, .total = all.size() * ranks_.size()};
    for (std::size_t first = 0; first < all.size(); first += kStepsAWave) {
      const std::size_t count = std::min(kStepsAWave, all.size() - first);
      std::vector<Status> statuses(count);
      InParallel(count, [&](std::size_t i) {
        if (!stop.stop_requested())
          statuses[i] = Measure(all[first + i].first, all[first + i].second);
      });
      if (stop.stop_requested())
        return Status(Code::kCancelled, "noise: cancelled; nothing was saved");
      for (const Status& status : statuses) STATCOLLECT_RETURN_IF_ERROR(status);
      done.done += count * ranks_.size();
      if (progress) progress(done);
    }
    profile_.steps = all.size();
    profile_.last_step = all.empty() ? 0 : all.back().first;
    profile_.Finish();
    return std::move(profile_);
  }

 private:
  Status Measure(std::uint64_t step, std::size_t attempt) {
    for (const std::uint32_t rank : ranks_) {
      if (!a_.ranks(attempt).contains(rank)) continue;
      STATCOLLECT_ASSIGN_OR_RETURN(auto noise, noise_.At(attempt, rank, step));
      STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, a_.Catalogue(attempt, rank));
      {
        MutexLock lock(mutex_);
        for (std::size_t id = 0; id < noise.size(); ++id)
          profile_.Note(catalogue->activations[id].key, step, noise[id]);
      }
      STATCOLLECT_RETURN_IF_ERROR(MeasureLosses(attempt, rank, step));
    }
    return Status::Ok();
  }

  Status MeasureLosses(std::size_t attempt, std::uint32_t rank, std::uint64_t step) {
    STATCOLLECT_ASSIGN_OR_RETURN(auto scalars,
                                 a_.Scalars(attempt, rank, {.first = step, .last = step}));
    for (const ScalarRecord& scalar : scalars) {
      if (!IsLoss(scalar.name)) continue;
      STATCOLLECT_ASSIGN_OR_RETURN(auto noise,
                                   noise_.OfLoss(rank, step, scalar.micro_batch, scalar.name));
      MutexLock lock(mutex_);
      profile_.NoteLoss(scalar.name, scalar.micro_batch, step, noise);
    }
    return Status::Ok();
  }

  RunView& a_;
  NoiseFloor& noise_;
  const std::vector<std::uint32_t> ranks_;
  Mutex mutex_;
  NoiseProfile profile_;  // guarded by mutex_ while threads measure
};

// The twins of A or, if the request names runs, these: twins, and repeats as twins of the smallest
// noise.
Result<std::vector<TwinOf>> WantedTwins(RecordReader& store, const RunView& a,
                                        const DiffRequest& request) {
  if (request.noise.empty() && (request.no_noise || request.exact)) return std::vector<TwinOf>();
  auto twins = Twins::Find(store, a.run());
  if (!twins.ok() || request.noise.empty()) return twins;
  std::vector<TwinOf> named;
  for (const std::string& run : std::set<std::string>(request.noise.begin(), request.noise.end())) {
    const auto twin = std::find_if(twins->begin(), twins->end(),
                                   [&](const TwinOf& one) { return one.run == run; });
    named.push_back(twin != twins->end() ? *twin : TwinOf{.run = run, .perturbed = false});
  }
  return named;
}

std::vector<std::string> RepeatsAmong(const std::vector<TwinOf>& runs) {
  std::vector<std::string> repeats;
  for (const TwinOf& run : runs) {
    if (!run.perturbed) repeats.push_back(run.run);
  }
  return repeats;
}

Status OpenTwins(std::vector<TwinOf> twins, RunView& a, const RepeatNoise::OpenRun& open,
                 KnownNoise& known) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto opened, Twins::Open(open, a, std::move(twins), known.notes));
  if (opened == nullptr) return Status::Ok();
  STATCOLLECT_ASSIGN_OR_RETURN(auto steps, a.Steps(StepSet()));
  // What repeats last showed holds for later steps only as a multiple of it.
  if (known.floor != nullptr && opened->steps().size() < steps.size()) {
    known.notes.push_back(
        "the repeats do not have every step of " + Printable(a.run()) +
        ", so ten times their distance was allowed instead of measuring rounding from them");
    return Status::Ok();
  }
  known.twins = std::move(opened);
  known.source = NoiseSource{};
  for (const TwinOf& twin : known.twins->all()) {
    known.source->runs.push_back(twin.run);
    known.source->scale.push_back(twin.ulps);
  }
  return Status::Ok();
}

}  // namespace

Result<KnownNoise> OpenNoise(RecordReader& store, RunView& a, const DiffRequest& request,
                             const RepeatNoise::OpenRun& open, bool fold) {
  KnownNoise known;
  STATCOLLECT_ASSIGN_OR_RETURN(auto twins, WantedTwins(store, a, request));
  if (const auto repeats = RepeatsAmong(twins); !repeats.empty()) {
    STATCOLLECT_ASSIGN_OR_RETURN(known.floor, RepeatNoise::Open(open, a, repeats));
    known.source = NoiseSource{.runs = request.noise, .stored = false};
  }
  if (!twins.empty() && !request.exact)
    STATCOLLECT_RETURN_IF_ERROR(OpenTwins(std::move(twins), a, open, known));
  if (known.source || request.no_noise || request.exact) return known;
  STATCOLLECT_ASSIGN_OR_RETURN(auto profile, Load(store, a.run()));
  if (!profile) return known;
  if (fold) profile->FoldMicroBatches();
  known.source = NoiseSource{.runs = profile->runs, .stored = true};
  known.floor = std::make_unique<ProfileNoise>(a, *std::move(profile));
  return known;
}

Result<NoiseProfile> SaveNoiseOf(DocumentStore& store, RunView& a, const SaveNoiseRequest& request,
                                 const RepeatNoise::OpenRun& open, const OnProgress& progress,
                                 const std::stop_token& stop) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto repeats, RepeatNoise::Open(open, a, request.repeats));
  STATCOLLECT_ASSIGN_OR_RETURN(auto profile, Measurement(a, *repeats).Run(progress, stop));
  profile.runs = request.repeats;
  profile.saved_unix_nanos = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                 std::chrono::system_clock::now().time_since_epoch())
                                 .count();
  STATCOLLECT_RETURN_IF_ERROR(store.PutDocument(request.run, kNoiseDocument, profile.Encode()));
  return profile;
}

Result<NoiseProfile> StoredNoise(RecordReader& store, const std::string& run) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto profile, Load(store, run));
  if (!profile) {
    return Status(Code::kNotFound, "noise of run '" + Printable(run) +
                                       "': none is stored; save it with: statctl noise save " +
                                       Printable(run) + " --runs RUN2,RUN3");
  }
  return *std::move(profile);
}

}  // namespace statcollect::query
