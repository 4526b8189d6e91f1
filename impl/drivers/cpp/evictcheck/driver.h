// The driver protocol, version 1 (PROTOCOL.md), for a manager in C++ of any shape.
//
// A driver includes this, wraps its manager in a class (a Port, below), and ends with
//   int main() { return evictcheck::Serve<MyPort>(); }
#ifndef EVICTCHECK_DRIVER_H_
#define EVICTCHECK_DRIVER_H_

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace evictcheck {

struct Item {
  std::string mm_hash;
  std::int64_t embeds;
};

struct Request {
  std::string id;
  std::vector<Item> items;

  const Item& At(int input) const { return items.at(static_cast<std::size_t>(input)); }
};

template <class Items>
void Append(std::string& answer, const Items& items) {
  answer += std::to_string(items.size());
  for (const auto& item : items) {
    answer += ' ';
    if constexpr (std::is_same_v<std::decay_t<decltype(item)>, int>) {
      answer += std::to_string(item);
    } else {
      answer += item;
    }
  }
}

class Words {
 public:
  explicit Words(const std::string& line) : line_(line) {}

  bool AtEnd() const { return place_ > line_.size(); }

  std::string Next() {
    if (AtEnd()) throw std::runtime_error("a token is missing");
    const std::size_t end = std::min(line_.find(' ', place_), line_.size());
    std::string word = line_.substr(place_, end - place_);
    place_ = end + 1;
    return word;
  }

  std::int64_t Number() { return std::stoll(Next()); }
  int Input() { return static_cast<int>(Number()); }

 private:
  const std::string& line_;
  std::size_t place_ = 0;
};

// A driver around a Port, which is made of a capacity and offers, as in driver.cpp,
//   kHasCounters, kHasIds, kHasReset; Check, CanAllocate, Allocate, FreeInput, Ids, Drain, Reset, Counters.
template <class Port>
class Driver {
 public:
  // Appends one operation's answer.
  void Answer(const std::string& line, std::string& answer) {
    const std::size_t start = answer.size();
    try {
      Carry(Words(line), answer);
    } catch (const std::exception& error) {
      answer.resize(start);
      answer += "error ";
      for (const char* c = error.what(); *c != '\0'; ++c) answer += *c == '\n' ? ' ' : *c;
    } catch (...) {
      answer.resize(start);
      answer += "error something that is no std::exception";
    }
    answer += '\n';
  }

 private:
  void Carry(Words words, std::string& answer) {
    const std::string operation = words.Next();
    if (operation == "check") {
      const Request& request = Named(words);
      answer += port_->Check(request, words.Input()) ? '1' : '0';
    } else if (operation == "state") {
      State(words, answer);
    } else if (operation == "can_allocate") {
      const Request& request = Named(words);
      const int input = words.Input();
      const std::int64_t budget = words.Number();
      answer += port_->CanAllocate(request, input, budget, words.Number()) ? '1' : '0';
    } else if (operation == "ids") {
      Append(answer, port_->Ids(Named(words)));
    } else if (operation == "drain") {
      Append(answer, port_->Drain());
    } else if (operation == "hello") {
      answer += "hello 1";
      if (Port::kHasCounters) answer += " counters";
      if (Port::kHasIds) answer += " ids";
      if (Port::kHasReset) answer += " reset";
    } else {
      Change(operation, words);
      answer += "ok";
    }
  }

  void Change(const std::string& operation, Words& words) {
    if (operation == "free_input") {
      const Request& request = Named(words);
      port_->FreeInput(request, words.Input());
    } else if (operation == "allocate") {
      const Request& request = Named(words);
      port_->Allocate(request, words.Input());
    } else if (operation == "free") {
      const Request& request = Named(words);
      for (const int input : port_->Ids(request)) port_->FreeInput(request, input);
    } else if (operation == "new") {
      port_ = std::make_unique<Port>(words.Number());
    } else if (operation == "reset") {
      port_->Reset();
    } else if (operation == "request") {
      Declare(words);
    } else {
      throw std::runtime_error("there is no operation " + operation);
    }
  }

  void State(Words& words, std::string& answer) {
    const std::size_t start = answer.size();
    if (Port::kHasCounters) {
      const auto counters = port_->Counters();
      answer += std::to_string(counters.first) + ' ' + std::to_string(counters.second);
    }
    while (Port::kHasIds && !words.AtEnd()) {
      if (answer.size() > start) answer += ' ';
      Append(answer, port_->Ids(Named(words)));
    }
  }

  void Declare(Words& words) {
    Request request{words.Next(), {}};
    for (std::int64_t left = words.Number(); left > 0; --left) {
      std::string mm_hash = words.Next();
      request.items.push_back({std::move(mm_hash), words.Number()});
    }
    requests_[request.id] = request;
  }

  const Request& Named(Words& words) const { return requests_.at(words.Next()); }

  std::unordered_map<std::string, Request> requests_;
  std::unique_ptr<Port> port_;
};

inline void WriteAll(int pipe, const std::string& text) {
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t count = write(pipe, text.data() + written, text.size() - written);
    if (count <= 0) std::exit(1);
    written += static_cast<std::size_t>(count);
  }
}

template <class Port>
int Serve() {
  // What the manager prints must not get between the answers.
  const int answers = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  Driver<Port> driver;
  std::string unread, answer;
  char chunk[1 << 16];
  for (;;) {
    const ssize_t count = read(STDIN_FILENO, chunk, sizeof chunk);
    if (count <= 0) return 0;
    unread.append(chunk, static_cast<std::size_t>(count));
    std::size_t start = 0;
    for (std::size_t end; (end = unread.find('\n', start)) != std::string::npos; start = end + 1) {
      driver.Answer(unread.substr(start, end - start), answer);
    }
    unread.erase(0, start);
    WriteAll(answers, answer);
    answer.clear();
  }
}

}  // namespace evictcheck

#endif  // EVICTCHECK_DRIVER_H_
