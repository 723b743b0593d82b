#include "server/query/noise/noise_profile.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "common/types.h"
#include "server/store/byte_io.h"

namespace statcollect::query {
namespace {

using Ages = std::array<float, NoiseProfile::kAges>;

void Raise(Ages& ages, std::uint64_t step, double distance) {
  float& age = ages[NoiseProfile::AgeOf(step)];
  // Rounded up: what was seen once is not above its own noise.
  const float above =
      std::nextafter(static_cast<float>(distance), std::numeric_limits<float>::infinity());
  if (distance > 0) age = std::max(age, above);
}

void WriteAges(ByteWriter& out, const Ages& ages) {
  std::size_t count = ages.size();
  while (count > 0 && ages[count - 1] == (count > 1 ? ages[count - 2] : 0))
    --count;  // the rest repeats the last
  out.U8(static_cast<std::uint8_t>(count));
  for (std::size_t i = 0; i < count; ++i) out.F32(ages[i]);
}

void ReadAges(ByteReader& in, Ages& ages) {
  const std::size_t count = in.U8();
  if (count > ages.size()) return in.Fail();
  float last = 0;
  for (std::size_t i = 0; i < ages.size(); ++i) {
    if (i < count) last = in.F32();
    if (std::isnan(last) || last < 0) return in.Fail();
    ages[i] = last;
  }
}

template <typename Enum>
Enum ReadEnum(ByteReader& in, int count) {
  const std::uint8_t value = in.U8();
  if (value >= count) in.Fail();
  return static_cast<Enum>(value);
}

}  // namespace

std::size_t NoiseProfile::AgeOf(std::uint64_t step) {
  return static_cast<std::size_t>(std::bit_width(step));
}

void NoiseProfile::Note(const TensorKey& key, std::uint64_t step, double distance) {
  Raise(activations[key], step, distance);
}

void NoiseProfile::NoteLoss(const std::string& name, std::uint32_t micro_batch, std::uint64_t step,
                            double distance) {
  Raise(losses[{name, micro_batch}], step, distance);
}

void NoiseProfile::Finish() {
  const auto fill = [](auto& entries) {
    for (auto& [key, ages] : entries) {
      for (std::size_t i = 1; i < ages.size(); ++i) ages[i] = std::max(ages[i], ages[i - 1]);
    }
  };
  fill(activations);
  fill(losses);
}

void NoiseProfile::FoldMicroBatches() {
  const auto raise = [](Ages& to, const Ages& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
  };
  decltype(activations) folded;
  for (const auto& [key, ages] : activations) {
    TensorKey first = key;
    first.micro_batch = first.call = 0;
    raise(folded[std::move(first)], ages);
  }
  for (const auto& [key, ages] : folded) activations[key] = ages;
  for (const auto& [key, ages] : std::map(losses)) raise(losses[{key.first, 0}], ages);
}

std::string NoiseProfile::Encode() const {
  ByteWriter out;
  out.Varint(runs.size());
  for (const std::string& run : runs) out.Text(run);
  out.Signed(saved_unix_nanos);
  out.Varint(steps);
  out.Varint(last_step);
  out.Varint(activations.size());
  for (const auto& [key, ages] : activations) {
    out.Text(key.name);
    out.U8(static_cast<std::uint8_t>(key.kind));
    out.Text(key.output_path);
    out.Varint(key.micro_batch);
    out.Varint(key.call);
    out.U8(static_cast<std::uint8_t>(key.mode));
    WriteAges(out, ages);
  }
  out.Varint(losses.size());
  for (const auto& [key, ages] : losses) {
    out.Text(key.first);
    out.Varint(key.second);
    WriteAges(out, ages);
  }
  return out.Take();
}

Result<NoiseProfile> NoiseProfile::Decode(std::string_view bytes) {
  ByteReader in(bytes);
  NoiseProfile profile;
  for (std::size_t n = in.Count(1); n > 0 && in.ok(); --n) profile.runs.push_back(in.Text());
  profile.saved_unix_nanos = in.Signed();
  profile.steps = in.Varint();
  profile.last_step = in.Varint();
  for (std::size_t n = in.Count(7); n > 0 && in.ok(); --n) {
    TensorKey key;
    key.name = in.Text();
    key.kind = ReadEnum<Kind>(in, kKindCount);
    key.output_path = in.Text();
    key.micro_batch = in.Varint32();
    key.call = in.Varint32();
    key.mode = ReadEnum<Mode>(in, kModeCount);
    ReadAges(in, profile.activations[std::move(key)]);
  }
  for (std::size_t n = in.Count(3); n > 0 && in.ok(); --n) {
    std::string name = in.Text();
    const std::uint32_t micro_batch = in.Varint32();
    ReadAges(in, profile.losses[{std::move(name), micro_batch}]);
  }
  if (in.done()) return profile;
  return Status(Code::kDataLoss,
                "read a noise profile: its content does not parse; remove it with statctl noise rm "
                "and save it again");
}

Result<std::vector<double>> ProfileNoise::At(std::size_t attempt_a, std::uint32_t rank,
                                             std::uint64_t step) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto catalogue, a_.Catalogue(attempt_a, rank));
  MutexLock lock(mutex_);
  auto& entries = entries_[catalogue];
  if (entries.empty()) {
    for (const TensorDef& def : catalogue->activations) {
      const auto found = profile_.activations.find(def.key);
      entries.push_back(found == profile_.activations.end() ? nullptr : &found->second);
    }
  }
  std::vector<double> noise;
  noise.reserve(entries.size());
  for (const auto* ages : entries) {
    noise.push_back(ages == nullptr ? 0 : static_cast<double>((*ages)[NoiseProfile::AgeOf(step)]));
  }
  return noise;
}

Result<double> ProfileNoise::OfLoss(std::uint32_t, std::uint64_t step, std::uint32_t micro_batch,
                                    const std::string& name) {
  const auto found = profile_.losses.find({name, micro_batch});
  return found == profile_.losses.end()
             ? 0.0
             : static_cast<double>(found->second[NoiseProfile::AgeOf(step)]);
}

}  // namespace statcollect::query
