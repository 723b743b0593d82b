#include "client/formats/pickle.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "common/endian.h"

namespace statcollect::client::formats {
namespace {

constexpr std::size_t kNameBytesMax = 1024;
constexpr std::size_t kValuesMax = std::size_t{1} << 21, kMarksMax = 4096, kPersistentMax = 16;
constexpr int kLowestProtocol = 2;

}  // namespace

// The pickle machine: a stack, marks in it, and what has been memorised. Each handler takes one
// group of operations, and returns whether the operation is of its group; `wrong_` then says what
// was wrong with it. Memory grows with the bytes read.
class PickleReader {
 public:
  explicit PickleReader(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  Result<Pickle> Read() {
    while (wrong_.empty() && !stopped_) {
      const char op = static_cast<char>(Number<std::uint8_t>());
      if (!wrong_.empty()) break;
      if (!Literal(op) && !Text(op) && !Container(op) && !Memory(op) && !Object(op))
        wrong_ = "the operation " + std::to_string(static_cast<unsigned char>(op));
    }
    if (wrong_.empty() && stack_.size() != 1) wrong_ = "an end without one value";
    if (!wrong_.empty())
      return Status(Code::kInvalidArgument,
                    "a pickle with " + wrong_ + " at byte " + std::to_string(size_ - rest_.size()));
    pickle_.root_ = stack_.back();
    return std::move(pickle_);
  }

 private:
  using Id = Pickle::Id;
  using Type = Pickle::Type;

  // --- what comes next in the bytes

  std::string_view Take(std::uint64_t count) {
    if (count > rest_.size()) {
      wrong_ = "its end missing";
      return {};
    }
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(static_cast<std::size_t>(count));
    return taken;
  }
  template <typename T>
  T Number() {
    const std::string_view bytes = Take(sizeof(T));
    return bytes.empty() ? T{} : LoadLittleEndian<T>(bytes.data());
  }
  std::string_view Line() {
    const std::string_view line = Take(std::min(rest_.find('\n'), rest_.size()));
    Take(1);
    return line;
  }

  // --- the stack

  Pickle::Value& Push(Type type) {
    if (pickle_.values_.size() >= kValuesMax) wrong_ = "too many values";
    pickle_.values_.push_back({.type = type});
    stack_.push_back(static_cast<Id>(pickle_.values_.size() - 1));
    return pickle_.values_.back();
  }
  Id Pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      wrong_ = "a value missing";
      return 0;
    }
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  // The values from the last mark on.
  std::vector<Id> PopMark() {
    if (marks_.empty()) {
      wrong_ = "a mark missing";
      return {};
    }
    std::vector<Id> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                          stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  std::vector<Id> PopCount(std::size_t count) {
    std::vector<Id> items(count);
    for (std::size_t i = count; i > 0 && wrong_.empty(); --i) items[i - 1] = Pop();
    return wrong_.empty() ? items : std::vector<Id>();
  }
  // Into the container that the stack ends with.
  void AddTo(const std::vector<Id>& items, Type type) {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      wrong_ = "a value missing";
      return;
    }
    Pickle::Value& container = pickle_.values_[stack_.back()];
    if (type == Type::kDict && items.size() % 2 != 0) wrong_ = "a key without a value";
    // A class of its own that is filled like one: what it is called with says enough.
    if (container.type == type)
      container.items.insert(container.items.end(), items.begin(), items.end());
  }

  // --- the operations

  void PushLong(std::uint64_t bytes) {
    const std::string_view digits = Take(bytes);
    if (digits.size() > 8) {
      Push(Type::kOther);
      return;
    }
    const bool negative = !digits.empty() && (digits.back() & 0x80) != 0;
    std::uint64_t bits = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = digits.size(); i > 0; --i)
      bits = bits << 8 | static_cast<unsigned char>(digits[i - 1]);
    Push(Type::kInteger).integer = static_cast<std::int64_t>(bits);
  }

  bool Literal(char op) {
    switch (op) {
      case 'N':
        Push(Type::kNone);
        return true;
      case '\x88':
      case '\x89':
        Push(Type::kBool).integer = op == '\x88' ? 1 : 0;
        return true;
      case 'K':
        Push(Type::kInteger).integer = Number<std::uint8_t>();
        return true;
      case 'M':
        Push(Type::kInteger).integer = Number<std::uint16_t>();
        return true;
      case 'J':
        Push(Type::kInteger).integer = static_cast<std::int32_t>(Number<std::uint32_t>());
        return true;
      case '\x8a':
        PushLong(Number<std::uint8_t>());
        return true;
      case '\x8b':
        PushLong(Number<std::uint32_t>());
        return true;
      case 'G': {
        std::uint64_t bits = 0;  // big endian
        for (const char c : Take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
        Push(Type::kNumber).number = std::bit_cast<double>(bits);
        return true;
      }
      default:
        return false;
    }
  }

  bool Text(char op) {
    std::uint64_t bytes = 0;
    switch (op) {
      case 'U':
      case 'C':
      case '\x8c':
        bytes = Number<std::uint8_t>();
        break;
      case 'T':
      case 'B':
      case 'X':
        bytes = Number<std::uint32_t>();
        break;
      case '\x8d':
      case '\x8e':
      case '\x96':
        bytes = Number<std::uint64_t>();
        break;
      default:
        return false;
    }
    const std::string_view text = Take(bytes);
    Push(Type::kText).text = text;
    return true;
  }

  bool Container(char op) {
    switch (op) {
      case ')':
      case ']':
      case '\x8f':
        Push(Type::kList);
        return true;
      case '}':
        Push(Type::kDict);
        return true;
      case 't':
      case 'l':
      case '\x91': {
        auto items = PopMark();
        Push(Type::kList).items = std::move(items);
        return true;
      }
      case '\x85':
      case '\x86':
      case '\x87': {
        auto items = PopCount(static_cast<std::size_t>(op - '\x85') + 1);
        Push(Type::kList).items = std::move(items);
        return true;
      }
      case 'a':
        AddTo(PopCount(1), Type::kList);
        return true;
      case 'e':
      case '\x90':
        AddTo(PopMark(), Type::kList);
        return true;
      case 's':
        AddTo(PopCount(2), Type::kDict);
        return true;
      case 'u':
        AddTo(PopMark(), Type::kDict);
        return true;
      default:
        return false;
    }
  }

  void Memorise(std::uint32_t key) {
    const Id id = Pop();
    if (!wrong_.empty()) return;
    stack_.push_back(id);
    memo_[key] = id;
  }
  void Recall(std::uint32_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end())
      wrong_ = "a value that it never memorised";
    else
      stack_.push_back(found->second);
  }

  bool Memory(char op) {
    switch (op) {
      case '(':
        if (marks_.size() >= kMarksMax) wrong_ = "too deep a nesting";
        marks_.push_back(stack_.size());
        return true;
      case '0':
        Pop();
        return true;
      case '1':
        PopMark();
        return true;
      case 'q':
        Memorise(Number<std::uint8_t>());
        return true;
      case 'r':
        Memorise(Number<std::uint32_t>());
        return true;
      case '\x94':
        Memorise(static_cast<std::uint32_t>(memo_.size()));
        return true;
      case 'h':
        Recall(Number<std::uint8_t>());
        return true;
      case 'j':
        Recall(Number<std::uint32_t>());
        return true;
      case '\x80':
        if (Number<std::uint8_t>() < kLowestProtocol) wrong_ = "a protocol before 2";
        return true;
      case '\x95':
        Take(8);
        return true;
      case '.':
        stopped_ = true;
        return true;
      default:
        return false;
    }
  }

  void PushName(std::string_view module, std::string_view name) {
    if (module.size() + name.size() > kNameBytesMax)
      wrong_ = "a name that is too long";
    else
      Push(Type::kName).text = std::string(module) + "." + std::string(name);
  }

  void PushCall(std::vector<Id> items) {
    if (!wrong_.empty()) return;
    const Pickle::Value& called = pickle_.values_[items[0]];
    // Filled afterwards, as a dictionary is.
    const bool dictionary = called.type == Type::kName &&
                            called.text == "collections.OrderedDict" &&
                            pickle_.values_[items[1]].items.empty();
    if (dictionary)
      Push(Type::kDict);
    else
      Push(Type::kCall).items = std::move(items);
  }

  bool Object(char op) {
    switch (op) {
      case 'c': {
        const std::string_view module = Line();
        PushName(module, Line());
        return true;
      }
      case '\x93': {
        const auto names = PopCount(2);
        if (!wrong_.empty()) return true;
        PushName(pickle_.values_[names[0]].text, pickle_.values_[names[1]].text);
        return true;
      }
      case 'Q': {
        const Id id = Pop();
        if (!wrong_.empty()) return true;
        auto items = pickle_.values_[id].items;
        if (items.size() > kPersistentMax) wrong_ = "a storage that is none";
        Push(Type::kPersistent).items = std::move(items);
        return true;
      }
      case 'R':
      case '\x81':
        PushCall(PopCount(2));
        return true;
      case '\x92': {
        auto items = PopCount(3);
        if (items.size() == 3) items.pop_back();
        PushCall(std::move(items));
        return true;
      }
      case 'b':  // what the object would be filled with
        Pop();
        return true;
      default:
        return false;
    }
  }

  std::string_view rest_;
  const std::size_t size_;
  Pickle pickle_;
  std::vector<Id> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, Id> memo_;
  std::string wrong_;  // empty: nothing so far
  bool stopped_ = false;
};

Result<Pickle> Pickle::Read(std::string_view bytes) {
  if (bytes.size() > kPickleBytesMax)
    return Status(Code::kInvalidArgument,
                  "a pickle of more than " + std::to_string(kPickleBytesMax) + " bytes");
  return PickleReader(bytes).Read();
}

const Pickle::Value* Pickle::Find(const Value& dictionary, std::string_view key) const {
  if (dictionary.type != Type::kDict) return nullptr;
  for (std::size_t i = 0; i + 1 < dictionary.items.size(); i += 2) {
    const Value& found = values_[dictionary.items[i]];
    if (found.type == Type::kText && found.text == key) return &values_[dictionary.items[i + 1]];
  }
  return nullptr;
}

std::string Pickle::NameOf(const Value& value) const {
  switch (value.type) {
    case Type::kCall:
      return values_[value.items[0]].type == Type::kName ? values_[value.items[0]].text : "object";
    case Type::kName:
      return value.text;
    case Type::kNone:
      return "None";
    case Type::kBool:
      return "bool";
    case Type::kInteger:
      return "int";
    case Type::kNumber:
      return "float";
    case Type::kText:
      return "str";
    case Type::kList:
      return "list";
    case Type::kDict:
      return "dict";
    default:
      return "object";
  }
}

}  // namespace statcollect::client::formats
