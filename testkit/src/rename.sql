-- Give a template that is whole its own name. {copy}, {name}: the names. No index.
-- Locking: no session is connected to it; others that make the same template wait.
ALTER DATABASE {copy} RENAME TO {name}
