//! A parser of the JSON in golden files. It trusts them: they come with the program.

use crate::Outcome;

pub enum Json {
    Null,
    Bool(bool),
    Whole(i64),
    Real(f64),
    Text(String),
    List(Vec<Json>),
    Map(Vec<(String, Json)>),
}

impl Json {
    pub fn parse(text: &str) -> Outcome<Json> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value()?;
        match reader.peek() {
            None => Ok(value),
            Some(_) => Err(reader.wrong("the end")),
        }
    }

    pub fn get(&self, key: &str) -> Option<&Json> {
        self.map().ok()?.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub fn at(&self, key: &str) -> Outcome<&Json> {
        self.get(key).ok_or_else(|| format!("no {key:?} in the golden file").into())
    }

    pub fn map(&self) -> Outcome<&[(String, Json)]> {
        if let Json::Map(pairs) = self {
            Ok(pairs)
        } else {
            Err("no object in the golden file".into())
        }
    }

    pub fn list(&self) -> Outcome<&[Json]> {
        if let Json::List(values) = self {
            Ok(values)
        } else {
            Err("no list in the golden file".into())
        }
    }

    pub fn text(&self) -> Outcome<&str> {
        if let Json::Text(text) = self {
            Ok(text)
        } else {
            Err("no text in the golden file".into())
        }
    }

    pub fn whole(&self) -> Outcome<i64> {
        if let Json::Whole(number) = self {
            Ok(*number)
        } else {
            Err("no integer in the golden file".into())
        }
    }

    pub fn real(&self) -> Outcome<f64> {
        if let Json::Real(number) = self {
            Ok(*number)
        } else {
            Ok(self.whole()? as f64)
        }
    }

    pub fn flag(&self) -> Outcome<bool> {
        if let Json::Bool(flag) = self {
            Ok(*flag)
        } else {
            Err("no boolean in the golden file".into())
        }
    }

    pub fn wholes(&self) -> Outcome<Vec<i64>> {
        self.list()?.iter().map(Json::whole).collect()
    }

    pub fn rows(&self) -> Outcome<Vec<Vec<i64>>> {
        self.list()?.iter().map(Json::wholes).collect()
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn wrong(&self, wanted: &str) -> Box<dyn std::error::Error> {
        format!("expected {wanted} at byte {} of the golden file", self.at).into()
    }

    /// The next byte that is not a space.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, word: &str) -> bool {
        self.peek();
        let there = self.text[self.at..].starts_with(word);
        self.at += if there { word.len() } else { 0 };
        there
    }

    fn need(&mut self, word: &str) -> Outcome<()> {
        if self.take(word) {
            Ok(())
        } else {
            Err(self.wrong(word))
        }
    }

    fn value(&mut self) -> Outcome<Json> {
        for (word, value) in [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))] {
            if self.take(word) {
                return Ok(value);
            }
        }
        match self.peek() {
            Some(b'"') => Ok(Json::Text(self.string()?)),
            Some(b'[') => Ok(Json::List(self.several("[", "]", Self::value)?)),
            Some(b'{') => Ok(Json::Map(self.several("{", "}", Self::pair)?)),
            _ => self.number(),
        }
    }

    fn several<T>(&mut self, open: &str, close: &str, one: impl Fn(&mut Self) -> Outcome<T>) -> Outcome<Vec<T>> {
        let mut found = Vec::new();
        self.need(open)?;
        while !self.take(close) {
            if !found.is_empty() {
                self.need(",")?;
            }
            found.push(one(self)?);
        }
        Ok(found)
    }

    fn pair(&mut self) -> Outcome<(String, Json)> {
        self.peek();
        let key = self.string()?;
        self.need(":")?;
        Ok((key, self.value()?))
    }

    fn number(&mut self) -> Outcome<Json> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')).unwrap_or(rest.len());
        self.at += end;
        match rest[..end].parse() {
            Ok(number) => Ok(Json::Whole(number)),
            Err(_) => Ok(Json::Real(rest[..end].parse().map_err(|_| self.wrong("a number before"))?)),
        }
    }

    fn string(&mut self) -> Outcome<String> {
        self.need("\"")?;
        let mut found = String::new();
        loop {
            let rest = &self.text[self.at..];
            let end = rest.find(['"', '\\']).ok_or_else(|| self.wrong("the end of a text"))?;
            found.push_str(&rest[..end]);
            self.at += end + 1;
            if rest.as_bytes()[end] == b'"' {
                return Ok(found);
            }
            found.push(self.escaped()?);
        }
    }

    /// The character of an escape sequence.
    fn escaped(&mut self) -> Outcome<char> {
        let letter = self.text.as_bytes().get(self.at).copied();
        self.at += 1;
        Ok(match letter {
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'u') => self.unit()?,
            Some(same @ (b'"' | b'\\' | b'/')) => same.into(),
            _ => return Err(self.wrong("an escape before")),
        })
    }

    fn unit(&mut self) -> Outcome<char> {
        let mut units = vec![self.four()?];
        if (0xD800..0xDC00).contains(&units[0]) {
            self.need("\\u")?;
            units.push(self.four()?);
        }
        Ok(char::decode_utf16(units).next().unwrap_or(Ok('\0'))?)
    }

    fn four(&mut self) -> Outcome<u16> {
        let digits = self.text.get(self.at..self.at + 4).ok_or_else(|| self.wrong("four digits"))?;
        self.at += 4;
        Ok(u16::from_str_radix(digits, 16)?)
    }
}
